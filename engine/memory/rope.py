"""What a context beyond training needs: scaled rotary positions, in llama.cpp's flags.

llama.cpp 0c1e57098: YaRN (Peng et al. 2023, arXiv 2309.00071) takes the factor and the context that
the positions were trained on; with it llama-server counts their product as the training context,
without it it cuts each slot to training (`src/llama-context.cpp`, `server-context.cpp`).
"""

from dataclasses import dataclass
from math import ceil

from engine.model.architecture import Model


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How positions must be scaled for a context."""

    factor: float
    """Context over what the positions were trained on, in quarters."""
    n_ctx_original: int
    """Tokens that the positions were trained on, before any scaling."""

    @property
    def arguments(self) -> list[str]:
        """Arguments of llama.cpp's programs."""
        return [
            "--rope-scaling", "yarn", "--rope-scale", f"{self.factor:g}",
            "--yarn-orig-ctx", str(self.n_ctx_original),
        ]  # fmt: skip


def rope_scaling(model: Model, n_ctx_slot: int) -> RopeScaling | None:
    """Give the scaling that a context of one slot needs; None within what was trained on."""
    trained = model.architecture.n_ctx_train
    if n_ctx_slot <= trained:
        return None
    key = f"{model.file.architecture}.rope.scaling.original_context_length"
    original = model.file.integer(key) or trained
    return RopeScaling(ceil(n_ctx_slot / original * 4) / 4, original)


def rope_warning(model: Model, n_ctx_slot: int, *, is_kvchat: bool) -> str | None:
    """Say what a context beyond training needs; None where it is within."""
    scaling = rope_scaling(model, n_ctx_slot)
    if scaling is None:
        return None
    trained = model.architecture.n_ctx_train
    flags = " ".join(scaling.arguments)
    beyond = f"the model was trained on {trained:,} tokens, and {n_ctx_slot:,} are more"
    if is_kvchat:
        return f"{beyond}: replies get worse behind them; llama-server can scale RoPE with {flags}"
    return (
        f"{beyond}: add {flags}, or llama-server cuts each slot to {trained:,}; short texts lose a "
        "little by it"
    )
