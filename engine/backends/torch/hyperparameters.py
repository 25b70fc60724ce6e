"""Hyperparameters of a model from its GGUF header, and the supported architectures."""

from dataclasses import dataclass
from typing import Literal

from engine.backends.torch.caches.base import LayerShape
from engine.backends.torch.caches.recurrent import StateSizes
from engine.errors import ModelLoadError
from engine.model.architecture import Model
from engine.model.layers import Layer

Pairs = Literal["interleaved", "halves"]
Activation = Literal["silu", "gelu"]

DEFAULT_ROPE_BASE = 10_000.0
"""For files without one, and for Gemma 3's sliding layers (llama.cpp 0c1e57098,
`rope_freq_base_train_swa` in `src/llama-hparams.h`)."""
LARGEST_GEMMA_LAYERS = 62
"""Layers of Gemma 3 27B, which scales scores by its hidden size (`src/models/gemma3.cpp`)."""


@dataclass(frozen=True, slots=True)
class TorchFamily:
    """Properties of an architecture that headers do not contain."""

    pairs: Pairs = "halves"
    """Which elements of a head rotate together in the file."""
    activation: Activation = "silu"
    scales_embeddings: bool = False
    """Whether embeddings are multiplied by the root of their width."""
    is_recurrent: bool = False


FAMILIES: dict[str, TorchFamily] = {
    "llama": TorchFamily(pairs="interleaved"),  # also Mistral, SmolLM, Yi
    "qwen2": TorchFamily(),
    "qwen3": TorchFamily(),
    "gemma3": TorchFamily(activation="gelu", scales_embeddings=True),
    "mamba": TorchFamily(is_recurrent=True),
}
"""The architectures of `engine.memory.torch_caches.ARCHITECTURES`."""


@dataclass(frozen=True, slots=True)
class RopeShape:
    """Base of the rotation's angles, and factor of the positions."""

    base: float
    scale: float


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention layer."""

    n_heads: int
    cache: LayerShape
    """Keys and values have heads of equal size."""
    rope: RopeShape
    scale: float
    """Factor of the scores."""


@dataclass(frozen=True, slots=True)
class StateSpaceShape:
    """One layer of Mamba."""

    d_inner: int
    d_state: int
    d_conv: int
    dt_rank: int

    @property
    def states(self) -> StateSizes:
        """Sizes of the last inputs of the convolution, and of the hidden state."""
        return (self.d_inner, self.d_conv - 1), (self.d_inner, self.d_state)


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Everything that the model needs besides weights."""

    family: TorchFamily
    d_hidden: int
    n_ctx_train: int
    norm_epsilon: float
    softcap: float
    """Bound of the logits; 0 is none."""
    layers: tuple[AttentionShape | StateSpaceShape, ...]

    @property
    def attention(self) -> list[LayerShape]:
        """Shapes of the attention layers' caches."""
        return [each.cache for each in self.layers if isinstance(each, AttentionShape)]

    @property
    def recurrent(self) -> list[StateSizes]:
        """Sizes of the recurrent layers' states."""
        return [each.states for each in self.layers if isinstance(each, StateSpaceShape)]


def read_hyperparameters(model: Model) -> Hyperparameters:
    """Read the hyperparameters of a model.

    Raises:
        ModelLoadError: the architecture, or a value in the header, is not supported.
    """
    keys = _Keys(model)
    family, architecture = FAMILIES.get(keys.name), model.architecture
    if family is None:
        raise keys.unsupported(
            f"the architecture {keys.name} of {keys.file} (supported: {', '.join(FAMILIES)})"
        )
    if architecture.is_moe:
        raise keys.unsupported(
            f"mixture-of-experts models, and {keys.file} has {architecture.n_experts} experts per "
            "layer"
        )
    if family.is_recurrent:
        layers: tuple[AttentionShape | StateSpaceShape, ...] = (
            _state_space(keys),
        ) * architecture.n_layers
    else:
        layers = tuple(_attention(keys, layer) for _, layer in sorted(architecture.layers.items()))
    return Hyperparameters(
        family=family,
        d_hidden=architecture.d_hidden,
        n_ctx_train=architecture.n_ctx_train,
        norm_epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        softcap=keys.number("final_logit_softcapping", 0.0),
        layers=layers,
    )


class _Keys:
    """Values of a header by their names after the architecture's."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name, self.file = model.file.architecture, model.file.path.name

    def number(self, key: str, default: float | None = None) -> float:
        value = self.model.file.values.get(f"{self.name}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelLoadError(
                f"{self.file} has no usable {self.name}.{key} (found {value}): the header is "
                "incomplete"
            )
        return float(value)

    def unsupported(self, what: str) -> ModelLoadError:
        return ModelLoadError(
            f"the torch backend does not support {what}: use the llama.cpp backend"
        )


def _attention(keys: _Keys, layer: Layer) -> AttentionShape:
    head_dim, architecture = layer.k_head_dim, keys.model.architecture
    n_rotated = keys.number("rope.dimension_count", head_dim)
    if layer.v_head_dim != head_dim or n_rotated != head_dim:
        raise keys.unsupported(
            f"{keys.file}, which has {head_dim} elements per key, {layer.v_head_dim} per value and "
            f"{n_rotated:.0f} rotated elements (the three numbers must be equal)"
        )
    width = head_dim
    if keys.name == "gemma3" and architecture.n_layers == LARGEST_GEMMA_LAYERS:
        width = architecture.d_hidden // layer.n_heads
    return AttentionShape(
        n_heads=layer.n_heads,
        cache=LayerShape(layer.n_kv_heads, head_dim, head_dim, layer.window),
        rope=_rope(keys, slides=layer.window is not None),
        scale=width**-0.5,
    )


def _rope(keys: _Keys, *, slides: bool) -> RopeShape:
    if slides:
        return RopeShape(keys.number("rope.freq_base_swa", DEFAULT_ROPE_BASE), 1.0)
    scaling = keys.model.file.text(f"{keys.name}.rope.scaling.type") or "linear"
    if scaling not in ("none", "linear"):
        raise keys.unsupported(f"the RoPE scaling {scaling!r} of {keys.file} (supported: 'linear')")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    return RopeShape(keys.number("rope.freq_base", DEFAULT_ROPE_BASE), 1.0 / factor)


def _state_space(keys: _Keys) -> StateSpaceShape:
    if keys.model.file.values.get(f"{keys.name}.ssm.dt_b_c_rms"):
        raise keys.unsupported(f"{keys.file}, which normalises B, C and dt (Falcon Mamba)")
    return StateSpaceShape(
        d_inner=int(keys.number("ssm.inner_size")),
        d_state=int(keys.number("ssm.state_size")),
        d_conv=int(keys.number("ssm.conv_kernel")),
        dt_rank=int(keys.number("ssm.time_step_rank")),
    )
