"""What a GGUF header says of a model that torch can compute, and which families there are."""

from dataclasses import dataclass
from typing import Literal

from engine.backends.torch.caches.base import LayerShape
from engine.backends.torch.caches.recurrent import RecurrentShape
from engine.errors import ModelLoadError
from engine.model.architecture import Model
from engine.model.layers import Layer

Pairs = Literal["neighbours", "halves"]
Activation = Literal["silu", "gelu"]

DEFAULT_ROPE_BASE = 10_000.0
"""Of files that name none, and of Gemma 3's sliding layers (llama.cpp 0c1e57098,
`rope_freq_base_train_swa` in `src/llama-hparams.h`)."""
LARGEST_GEMMA_LAYERS = 62
"""Layers of Gemma 3 27B, which scales scores by its hidden size (`src/models/gemma3.cpp`)."""


@dataclass(frozen=True, slots=True)
class TorchFamily:
    """What all models of an architecture do and no header says."""

    pairs: Pairs = "halves"
    """Which elements of a head rotate together, as the file has them."""
    activation: Activation = "silu"
    scales_embeddings: bool = False
    """Whether embeddings are multiplied by the root of their width."""
    is_recurrent: bool = False


FAMILIES: dict[str, TorchFamily] = {
    "llama": TorchFamily(pairs="neighbours"),
    "qwen2": TorchFamily(),
    "qwen3": TorchFamily(),
    "gemma3": TorchFamily(activation="gelu", scales_embeddings=True),
    "mamba": TorchFamily(is_recurrent=True),
}
"""All of `engine.memory.torch_caches.ARCHITECTURES`; `llama` is Llama, Mistral, SmolLM, Yi
and whoever is built alike."""


@dataclass(frozen=True, slots=True)
class RopeShape:
    """By how much a position turns each pair of elements."""

    base: float
    scale: float
    """What positions are multiplied by."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention layer."""

    n_heads: int
    cache: LayerShape
    """What it keeps of a token; keys and values are of one size."""
    rope: RopeShape
    scale: float
    """What scores are multiplied by."""


@dataclass(frozen=True, slots=True)
class StateSpaceShape:
    """One layer of Mamba."""

    d_inner: int
    d_state: int
    d_conv: int
    dt_rank: int

    @property
    def states(self) -> RecurrentShape:
        """What it carries on: the last inputs of its convolution, and its hidden state."""
        return RecurrentShape(((self.d_inner, self.d_conv - 1), (self.d_inner, self.d_state)))


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Everything that the computation needs beside the weights."""

    architecture: str
    family: TorchFamily
    d_hidden: int
    n_vocab: int
    n_ctx_train: int
    norm_epsilon: float
    softcap: float
    """Bound of the logits; 0 is none."""
    layers: tuple[AttentionShape | StateSpaceShape, ...]


def read_hyperparameters(model: Model) -> Hyperparameters:
    """The hyperparameters of a model.

    Raises:
        ModelLoadError: torch has no code for the architecture, or for something in the header.
    """
    keys = _Keys(model)
    family = FAMILIES.get(keys.name)
    if family is None:
        raise ModelLoadError(
            f"the torch backend does not support the architecture {keys.name} of "
            f"{model.file.path.name} (supported: {', '.join(FAMILIES)}): use the llama.cpp "
            "backend"
        )
    architecture = model.architecture
    if architecture.is_moe:
        raise ModelLoadError(
            "the torch backend does not support mixture-of-experts models, and "
            f"{model.file.path.name} has {architecture.n_experts} experts per layer: use the "
            "llama.cpp backend"
        )
    return Hyperparameters(
        architecture=keys.name,
        family=family,
        d_hidden=architecture.d_hidden,
        n_vocab=architecture.n_vocab,
        n_ctx_train=architecture.n_ctx_train,
        norm_epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        softcap=keys.number("final_logit_softcapping", 0.0),
        layers=_layers(keys, family),
    )


class _Keys:
    """The numbers of a header, by their names after the architecture's."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.file.architecture

    def number(self, key: str, default: float | None = None) -> float:
        value = self.model.file.values.get(f"{self.name}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelLoadError(
                f"{self.model.file.path.name} has no usable {self.name}.{key} (found {value}): "
                "the header is incomplete"
            )
        return float(value)

    def text(self, key: str) -> str | None:
        return self.model.file.text(f"{self.name}.{key}")


def _layers(keys: _Keys, family: TorchFamily) -> tuple[AttentionShape | StateSpaceShape, ...]:
    architecture = keys.model.architecture
    if family.is_recurrent:
        return (_state_space(keys),) * architecture.n_layers
    return tuple(_attention(keys, layer) for _, layer in sorted(architecture.layers.items()))


def _attention(keys: _Keys, layer: Layer) -> AttentionShape:
    head_dim = layer.k_head_dim
    n_rotated = keys.number("rope.dimension_count", head_dim)
    if layer.v_head_dim != head_dim or n_rotated != head_dim:
        raise ModelLoadError(
            f"{keys.model.file.path.name} has key heads of {head_dim} elements, value heads of "
            f"{layer.v_head_dim} and {n_rotated:.0f} rotated elements, but the torch backend "
            "requires equal numbers: use the llama.cpp backend"
        )
    width = head_dim
    if keys.name == "gemma3" and keys.model.architecture.n_layers == LARGEST_GEMMA_LAYERS:
        width = keys.model.architecture.d_hidden // layer.n_heads
    return AttentionShape(
        n_heads=layer.n_heads,
        cache=LayerShape(layer.n_kv_heads, head_dim, head_dim, layer.window),
        rope=_rope(keys, slides=layer.window is not None),
        scale=width**-0.5,
    )


def _rope(keys: _Keys, *, slides: bool) -> RopeShape:
    kind = keys.text("rope.scaling.type") or "linear"
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    if slides:
        return RopeShape(keys.number("rope.freq_base_swa", DEFAULT_ROPE_BASE), 1.0)
    if kind not in ("none", "linear"):
        raise ModelLoadError(
            f"the torch backend does not support the RoPE scaling {kind!r} of "
            f"{keys.model.file.path.name} (supported: 'linear'): use the llama.cpp backend"
        )
    return RopeShape(keys.number("rope.freq_base", DEFAULT_ROPE_BASE), 1.0 / factor)


def _state_space(keys: _Keys) -> StateSpaceShape:
    if keys.model.file.values.get(f"{keys.name}.ssm.dt_b_c_rms"):
        raise ModelLoadError(
            f"the torch backend does not support {keys.model.file.path.name}, which "
            "normalises B, C and dt (Falcon Mamba): use the llama.cpp backend"
        )
    return StateSpaceShape(
        d_inner=int(keys.number("ssm.inner_size")),
        d_state=int(keys.number("ssm.state_size")),
        d_conv=int(keys.number("ssm.conv_kernel")),
        dt_rank=int(keys.number("ssm.time_step_rank")),
    )
