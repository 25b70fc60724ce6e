"""What a search is for, and what it may not touch."""

from dataclasses import dataclass
from enum import StrEnum

from engine.configuration import KVTypes
from engine.errors import PresetError

MICRO_BATCHES = (512, 256, 128)
"""Micro-batches from llama.cpp's default down: smaller ones free memory and read prompts slower."""

USUAL_LEAST_N_CTX = 8192
"""Least context of a slot where the user names none: a few pages and the turns about them."""

BALANCED_N_CTX = 32768
"""Context of a slot beyond which the balanced goal sees no gain."""


class Goal(StrEnum):
    """What is to be best.

    All but `balanced` choose among the placements of the layers that are hardly slower than the
    fastest that fits the least context; `quality` does so with the finest cache that fits anywhere.
    Among what is equal, larger micro-batches and then faster placements come first.
    """

    CONTEXT = "context"
    """Most tokens, then the finest cache whose placement is hardly slower than need be for them."""
    QUALITY = "quality"
    """The finest cache, then the largest micro-batch, then most tokens."""
    SPEED = "speed"
    """A draft model if one is given, then the finest cache, the largest micro-batch, the fastest
    placement, and then most tokens."""
    BALANCED = "balanced"
    """Tokens up to 32,768 against speed and fineness, by the weights of `score`."""


class Offload(StrEnum):
    """How much of a model may lie in main memory though there is a GPU."""

    NONE = "none"
    """Nothing: it lies on the GPUs whole, or it does not fit."""
    PARTIAL = "partial"
    """What must, for the least context to fit; more only where it hardly costs speed."""
    ANY = "any"
    """As much as the goal gains from, such as a longer context."""
    FULL = "full"
    """All layers; the GPU only helps with prompts."""


class LimitsError(PresetError):
    """Limits of a search that nothing can keep."""

    title = "These limits contradict each other"


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What a search has to keep to; the defaults are those of llama.cpp and of the model."""

    min_n_ctx: int | None = None
    """Least tokens of a slot; None is 8192, or training where that is less."""
    max_n_ctx: int | None = None
    """Most tokens of a slot; None is what the model was trained on, more only if said here."""
    pairs: tuple[KVTypes, ...] | None = None
    """Cache types to choose among, the best first; None is those that were measured and keep the
    gates, else f16, q8_0 and q4_0, matched."""
    cache_bytes: int | None = None
    """Most bytes of the cache; None is no limit."""
    offload: Offload = Offload.PARTIAL
    must_draft: bool = False
    """Whether a draft model must be used; else one that is given may be left out."""
    can_shrink_batches: bool = True
    """Whether micro-batches under 512 may be chosen to free memory."""

    def __post_init__(self) -> None:
        for name, value in (("smallest", self.min_n_ctx), ("largest", self.max_n_ctx)):
            if value is not None and value < 1:
                raise LimitsError(f"the {name} context is {value} tokens: write 1 or more")
        if self.min_n_ctx and self.max_n_ctx and self.min_n_ctx > self.max_n_ctx:
            raise LimitsError(
                f"the smallest context of {self.min_n_ctx} tokens is above the largest of "
                f"{self.max_n_ctx}: lower the first or raise the second"
            )
        if self.pairs == ():
            raise LimitsError("no cache type is allowed: name one, such as f16 or q8_0")
