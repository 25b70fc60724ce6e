"""What fits: the largest context of a configuration."""

from collections.abc import Callable
from dataclasses import replace

from engine.configuration import DRAFT_N_CTX, Configuration
from engine.errors import PresetError
from engine.memory.estimate import Companions, Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD
from engine.memory.terms import Target
from engine.model.architecture import Model

Estimator = Callable[[Configuration], Estimate]


class DoesNotFitError(PresetError):
    """No configuration that was allowed fits; the message says what is short, and where."""

    title = "It does not fit"


def estimator(
    model: Model,
    devices: tuple[Device, ...],
    *,
    target: Target = "kvchat",
    draft: Model | None = None,
    companions: Companions | None = None,
) -> Estimator:
    """The estimate as a function of the configuration alone."""
    return lambda configuration: estimate(
        model, configuration, devices, target=target, draft=draft, companions=companions
    )


def max_n_ctx(
    configuration: Configuration, cost: Estimator, *, n_ctx_limit: int, margin_bytes: int = 0
) -> int | None:
    """The largest context up to a limit that fits, in steps of 256; None where none does.

    The cost never falls when the context grows, so the steps are bisected.
    """

    def fits(steps: int) -> bool:
        return cost(with_n_ctx(configuration, steps * PAD)).fits(margin_bytes)

    low, high = 0, max(1, n_ctx_limit // PAD)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low * PAD or None


def with_n_ctx(configuration: Configuration, n_ctx: int) -> Configuration:
    """Change the context, and that of a draft model with it, as far as drafts gain by it."""
    draft = configuration.draft
    if draft is not None:
        draft = replace(draft, n_ctx=min(n_ctx, DRAFT_N_CTX))
    return replace(configuration, n_ctx=n_ctx, draft=draft)
