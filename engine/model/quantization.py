"""Which type each matrix of a model has in a quantisation.

These are the mixes of llama.cpp 0c1e57098 (`src/llama-quant.cpp`) without its rules for single
architectures: the weights of a published file may differ by a few per cent, as those of files made
with an importance matrix do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import ModelFileError
from engine.model.ggml_types import TYPES_BY_NAME, GgmlType
from engine.validation import nearest

VALUES = r"attn_(v|qkv|kv_b)\."
RAISED_IN_SOME = re.compile(rf"{VALUES}|ffn_down")
RAISED_IN_ALL = re.compile(rf"{VALUES}|ffn_down|attn_output\.")
LAYER = re.compile(r"blk\.(\d+)\.")
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
FALLBACKS = {
    "iq4_xs": "iq4_nl", "q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1",
    "q6_K": "q8_0",
}  # fmt: skip
"""The type of tensors whose rows are no multiple of 256."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The types that a quantisation gives."""

    default: str
    raised: str | None = None
    """The type of matrices that get more bits: those of values and `ffn_down`."""
    in_some: bool = False
    """Whether only about half of the layers have raised matrices; else `attn_output` is raised too,
    and in all of them."""

    def type_of(self, name: str, n_layers: int) -> str:
        """The type of a layer's matrix."""
        pattern = RAISED_IN_SOME if self.in_some else RAISED_IN_ALL
        layer = LAYER.match(name)
        if self.raised is None or layer is None or not pattern.search(name):
            return self.default
        is_raised = not self.in_some or _gets_more_bits(int(layer[1]), n_layers)
        return self.raised if is_raised else self.default


MIXES: Mapping[str, Mix] = {
    "F32": Mix("f32"),
    "F16": Mix("f16"),
    "BF16": Mix("bf16"),
    "Q8_0": Mix("q8_0"),
    "Q4_0": Mix("q4_0"),
    "Q4_1": Mix("q4_1"),
    "Q5_0": Mix("q5_0"),
    "Q5_1": Mix("q5_1"),
    "Q2_K": Mix("q2_K", "q3_K"),
    "Q3_K_S": Mix("q3_K"),
    "Q3_K_M": Mix("q3_K", "q4_K"),
    "Q3_K_L": Mix("q3_K", "q5_K"),
    "Q4_K_S": Mix("q4_K"),
    "Q4_K_M": Mix("q4_K", "q6_K", in_some=True),
    "Q5_K_S": Mix("q5_K"),
    "Q5_K_M": Mix("q5_K", "q6_K", in_some=True),
    "Q6_K": Mix("q6_K"),
    "IQ4_NL": Mix("iq4_nl"),
    "IQ4_XS": Mix("iq4_xs"),
    "MXFP4_MOE": Mix("q8_0"),
}
QUANTIZATIONS = tuple(MIXES)
WHOLE = ("f32", "f16", "bf16")


class UnknownQuantizationError(ModelFileError):
    """A quantisation that no model of the catalogue can have."""

    title = "No such quantisation"


def quantized_type(
    quantization: str, name: str, row_length: int, *, n_layers: int, is_tied: bool
) -> GgmlType:
    """The type of a matrix that the quantisation changes.

    Raises:
        UnknownQuantizationError: a quantisation whose mix is not known.
    """
    mix = MIXES.get(quantization)
    if mix is None:
        near = nearest(quantization, QUANTIZATIONS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? There" if near else "there"
        raise UnknownQuantizationError(
            f"a model of the catalogue has no {quantization!r}: {hint} are "
            f"{', '.join(QUANTIZATIONS)}"
        )
    if mix.default in WHOLE:
        return TYPES_BY_NAME[mix.default]
    if name == "output.weight" or (is_tied and name in EMBEDDINGS):
        kind = "q8_0" if mix.default == "q8_0" else "q6_K"
    elif quantization == "MXFP4_MOE" and "exps." in name:
        kind = "mxfp4"
    else:
        kind = mix.type_of(name, n_layers)
    return _fitting(kind, row_length)


def _gets_more_bits(layer: int, n_layers: int) -> bool:
    """Whether a layer is one of the first or last eighth, or every third of the others."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _fitting(kind: str, row_length: int) -> GgmlType:
    """A type whose blocks divide the row."""
    kinds = (kind, FALLBACKS.get(kind, kind), "f16")
    found = (TYPES_BY_NAME[each] for each in kinds)
    return next(each for each in found if row_length % each.block_size == 0)
