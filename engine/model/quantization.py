"""Which type a quantised model's tensors have.

The rules of llama.cpp 0c1e57098 (`src/llama-quant.cpp`, `conversion/base.py`, `conversion/glm.py`)
for files made without an importance matrix; a file made with one may differ by a few per cent in a
few layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from engine.errors import ModelFileError
from engine.model.ggml_types import FILE_TYPES, TYPES_BY_NAME, GgmlType
from engine.model.layouts.tables import Shape
from engine.validation import nearest

DEFAULTS = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0",
    "Q4_0": "q4_0", "Q4_1": "q4_1", "Q5_0": "q5_0", "Q5_1": "q5_1",
    "Q2_K": "q2_K", "Q3_K_S": "q3_K", "Q3_K_M": "q3_K", "Q3_K_L": "q3_K",
    "Q4_K_S": "q4_K", "Q4_K_M": "q4_K", "Q5_K_S": "q5_K", "Q5_K_M": "q5_K", "Q6_K": "q6_K",
    "IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_xs", "MXFP4_MOE": "mxfp4",
}  # fmt: skip
"""The type that most tensors of a quantisation have."""
QUANTIZATIONS = tuple(DEFAULTS)
WHOLE = ("f32", "f16", "bf16")
FILE_TYPE_IDS = {name: number for number, name in FILE_TYPES.items()}
FALLBACKS = {
    "iq4_xs": "iq4_nl", "q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1",
    "q6_K": "q8_0",
}  # fmt: skip
"""The type of tensors whose rows are no multiple of 256."""
GLM5_NEXT_Q8 = ("attn_q_a", "attn_q_b", "nextn.eh_proj")
"""Parts of names of tensors that one architecture never has in less than 8 bits."""
KEPT_WHOLE = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
    "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight",
    "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight",
    "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight",
    "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "position_embd.weight", "ffn_gate_tid2eid.weight",
)  # fmt: skip
"""Parts of names of tensors that are never quantised."""
KEPT_AS_F16 = (
    "altup_proj", "altup_unembd_proj", "altup_router", "laurel_l", "laurel_r",
    "per_layer_model_proj", "indexer.k_proj", "indexer.q_proj", "time_mix_v1", "time_mix_v2",
    "time_mix_a1", "time_mix_a2", "time_mix_g1", "time_mix_g2",
)  # fmt: skip
"""Those of them that the conversion writes in 16 bits; the others have 32."""
GLM5_NEXT_AS_F16 = (
    "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "ssm_f_a.weight", "ssm_f_b.weight",
    "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight",
    "attn_k_b.weight", "attn_v_b.weight",
)  # fmt: skip
GLM5_NEXT_WHOLE = ("hc_", "indexer_compressor_gate", "indexer_compressor_ape", *GLM5_NEXT_AS_F16)


class UnknownQuantizationError(ModelFileError):
    """A quantisation that no model of the catalogue can have."""

    title = "No such quantisation"


class Role(Enum):
    """What a tensor does, as far as its type depends on it."""

    EMBEDDING = auto()
    OUTPUT = auto()
    VALUE = auto()
    FUSED = auto()
    KEY = auto()
    ATTENTION_OUTPUT = auto()
    DOWN = auto()
    OTHER = auto()


ROLES = (
    ("attn_qkv.weight", Role.FUSED),
    ("attn_kv_b.weight", Role.VALUE),
    ("attn_v.weight", Role.VALUE),
    ("attn_k.weight", Role.KEY),
    ("attn_output.weight", Role.ATTENTION_OUTPUT),
    ("ffn_down", Role.DOWN),
)


@dataclass(frozen=True, slots=True)
class Mix:
    """What the types of a model depend on besides names and shapes."""

    quantization: str
    architecture: str
    n_layers: int
    """Blocks of the file, those of a next-token head included."""
    n_experts: int
    heads_per_kv_head: int
    is_70b: bool
    """Whether llama.cpp takes the model for one of 70 B, whose value matrices get more bits."""
    has_mxfp4_experts: bool
    """Whether the model was published with experts in MXFP4, which every file of it keeps."""


def tensor_types(mix: Mix, tensors: Sequence[Shape]) -> tuple[GgmlType, ...]:
    """The type of each tensor, in their order; layers must ascend.

    Raises:
        UnknownQuantizationError: a quantisation whose rules are not known.
    """
    if mix.quantization not in DEFAULTS:
        near = nearest(mix.quantization, QUANTIZATIONS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? There" if near else "there"
        raise UnknownQuantizationError(
            f"a model of the catalogue has no {mix.quantization!r}: {hint} are "
            f"{', '.join(QUANTIZATIONS)}"
        )
    return tuple(TYPES_BY_NAME[name] for name in _names(mix, tensors))


def kept_type(
    quantization: str, architecture: str, name: str, shape: tuple[int, ...]
) -> str | None:
    """The type of a tensor that is never quantised; None for one that is."""
    is_glm = architecture == "glm5-next"
    whole = KEPT_WHOLE + (GLM5_NEXT_WHOLE if is_glm else ())
    is_matrix = any(n > 1 for n in shape[1:]) and name.endswith("weight")
    if is_matrix and not any(part in name for part in whole):
        return None
    if "ffn_gate_tid2eid" in name:
        return "i32"
    halved = KEPT_AS_F16 + (GLM5_NEXT_AS_F16 if is_glm else ())
    is_half = is_matrix and any(part in name for part in halved)
    if not is_half or name.endswith("_norm.weight") or quantization == "F32":
        return "f32"
    return "bf16" if quantization == "BF16" else "f16"


def _names(mix: Mix, tensors: Sequence[Shape]) -> Iterator[str]:
    default = DEFAULTS[mix.quantization]
    chooser = _Chooser(mix, default, [_role(name) for name, _ in tensors])
    for index, (name, shape) in enumerate(tensors):
        kept = kept_type(mix.quantization, mix.architecture, name, shape)
        if kept is not None:
            yield kept
        elif mix.has_mxfp4_experts and "_exps." in name:
            yield "mxfp4"
        elif default in WHOLE:
            yield default
        else:
            yield _fitting(chooser.choose(index, name, shape), shape)


class _Chooser:
    """Chooses types one after the other; how many came before counts in some rules."""

    def __init__(self, mix: Mix, default: str, roles: Sequence[Role]) -> None:
        self._mix = mix
        self._default = default
        self._roles = roles
        self._n_values = sum(role in (Role.VALUE, Role.FUSED) for role in roles)
        self._output = Role.OUTPUT if Role.OUTPUT in roles else Role.EMBEDDING
        self._i_value = self._i_down = 0

    def choose(self, index: int, name: str, shape: tuple[int, ...]) -> str:
        """The type of the next tensor, whether or not its blocks divide the row."""
        mix, role = self._mix, self._roles[index]
        if mix.architecture == "glm5-next" and any(part in name for part in GLM5_NEXT_Q8):
            return "q8_0"
        if role is self._output:
            return _output_type(mix, shape, self._default)
        if mix.quantization == "MXFP4_MOE":
            return "mxfp4" if _is_expert(mix, name, shape) else "q8_0"
        if role in (Role.VALUE, Role.FUSED):
            self._i_value += 1
            return _value_type(mix, self._i_value - 1, self._n_values, self._default)
        if role is Role.DOWN:
            self._i_down += 1
            layer = int(name.split(".")[1]) if mix.n_experts > 1 else self._i_down - 1
            return _down_type(mix, layer, self._default)
        return _plain_type(mix, role, self._default)


def _role(name: str) -> Role:
    if name == "output.weight":
        return Role.OUTPUT
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return Role.EMBEDDING
    return next((role for part, role in ROLES if part in name), Role.OTHER)


def _is_expert(mix: Mix, name: str, shape: tuple[int, ...]) -> bool:
    """Whether llama.cpp takes it for experts; in one architecture only it looks at the name."""
    is_stack = len(shape) > 2 and shape[2] > 1
    return is_stack and (mix.architecture != "bailingmoe3" or ".ffn_" in name)


def _use_more_bits(layer: int, n_layers: int) -> bool:
    """Whether a layer is one of the first or last eighth, or every third of the others."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _output_type(mix: Mix, shape: tuple[int, ...], default: str) -> str:
    if mix.quantization == "MXFP4_MOE" or mix.architecture == "falcon":
        return "q8_0"
    if shape[0] % TYPES_BY_NAME[default].block_size or default == "q8_0":
        return "q8_0"
    return "q6_K"


def _value_type(mix: Mix, index: int, n_values: int, default: str) -> str:
    if mix.n_experts == 8:
        return "q8_0"
    kind = default
    is_shared = mix.heads_per_kv_head >= 4
    match mix.quantization:
        case "Q2_K":
            kind = "q4_K" if is_shared else "q3_K"
        case "Q3_K_M":
            kind = "q5_K" if index < 2 else "q4_K"
        case "Q3_K_L":
            kind = "q5_K"
        case "IQ4_NL" | "IQ4_XS" if is_shared:
            kind = "q5_K"
        case "Q4_K_M" | "Q5_K_M" if _use_more_bits(index, n_values):
            kind = "q6_K"
        case "Q4_K_S" if index < 4:
            kind = "q5_K"
        case _:
            pass
    return "q5_K" if mix.is_70b and kind in ("q3_K", "q4_K") else kind


def _down_type(mix: Mix, layer: int, default: str) -> str:
    n_layers = mix.n_layers
    is_falcon = mix.architecture == "falcon"
    more = _use_more_bits(layer, n_layers)
    match mix.quantization:
        case "Q2_K":
            return "q3_K"
        case "Q3_K_M" if layer < n_layers // 16:
            return "q5_K"
        case "Q3_K_M":
            return "q4_K" if more or not is_falcon else "q3_K"
        case "Q3_K_L":
            return "q4_K" if is_falcon else "q5_K"
        case "Q4_K_M" if is_falcon and layer >= n_layers // 16:
            return "q5_K" if more else "q4_K"
        case "Q4_K_M" | "Q5_K_M" if more:
            return "q6_K"
        case "IQ4_NL" | "IQ4_XS" if layer < n_layers // 8:
            return "q5_K"
        case "Q4_K_S" if not is_falcon and layer < n_layers // 8:
            return "q5_K"
        case _:
            return default


def _plain_type(mix: Mix, role: Role, default: str) -> str:
    if role is Role.KEY and mix.n_experts == 8:
        return "q8_0"
    if role is not Role.ATTENTION_OUTPUT:
        return default
    if mix.architecture == "falcon":
        return "q4_K" if mix.quantization == "Q3_K_L" else default
    if mix.n_experts == 8:
        raised = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS")
        return "q5_K" if mix.quantization in raised else default
    return {"Q2_K": "q3_K", "Q3_K_M": "q4_K", "Q3_K_L": "q5_K"}.get(mix.quantization, default)


def _fitting(kind: str, shape: tuple[int, ...]) -> str:
    """A type whose blocks divide the row."""
    if shape[0] % TYPES_BY_NAME[kind].block_size == 0:
        return kind
    smaller = FALLBACKS.get(kind, kind)
    return smaller if shape[0] % TYPES_BY_NAME[smaller].block_size == 0 else "f16"
