"""Saved states in other cache types: keys and values quantised anew, without a forward pass.

llama.cpp rotates keys and values before it quantises them, each stretch of `n` elements of a row by
the orthonormal Walsh-Hadamard matrix of `n`, which is its own inverse (`ggml_gen_hadamard`,
`build_input_k_rot`, `build_input_v_rot` of `llama-kv-cache.cpp`, commit 0c1e57098); what is not
quantised lies as it is. Keys are turned where all layers of a cache have one head dimension and 64
divides it, by the largest power of two that divides it too; values likewise, by 64. Elements are
read by ggml's `to_float` and written by the `from_float` with which its processor kernels fill the
cache, so a state made from exact keys is to the bit what llama.cpp would have written itself.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.backends.llama_cpp.elements import convert
from engine.backends.llama_cpp.log import CacheHeads
from engine.backends.llama_cpp.state_format import (
    AttentionLayout,
    RecurrentLayout,
    State,
    StateLayout,
    TensorLayout,
    read_parts,
    tensor_header,
)
from engine.configuration import KVTypes
from engine.errors import StateError
from engine.model.ggml_types import GGML_TYPES, TYPE_NUMBERS, GgmlType

SMALLEST_ROTATION = 64
ROTATION_OFF = "LLAMA_ATTN_ROT_DISABLE"
"""The environment variable by which llama.cpp rotates nothing."""


@dataclass(frozen=True, slots=True)
class Rotations:
    """How long the stretches are that are turned where a cache is quantised; 0 turns nothing."""

    k: int
    v: int


def rotations(
    caches: Sequence[CacheHeads], *, is_k_quantised: bool, is_v_quantised: bool
) -> tuple[Rotations, ...]:
    """The rotations of a model's caches, whether this context turns anything itself or not.

    Raises:
        StateError: it does not follow from what llama.cpp says.
    """
    k_dims = [heads.k_head_dim for heads in caches]
    v_dims = [heads.v_head_dim for heads in caches]
    return tuple(
        Rotations(
            _key_rotation(heads.k_head_dim)
            if _turns(heads.k_head_dim, heads.rotates_k if is_k_quantised else None, k_dims)
            else 0,
            SMALLEST_ROTATION
            if _turns(heads.v_head_dim, heads.rotates_v if is_v_quantised else None, v_dims)
            else 0,
        )
        for heads in caches
    )


def is_rotation_off() -> bool:
    """Whether llama.cpp is set to rotate nothing."""
    return os.environ.get(ROTATION_OFF, "0").strip() not in ("", "0")


def _turns(dim: int, does: bool | None, dims: Sequence[int]) -> bool:
    """Whether a quantised cache is turned: as this context does, or by the rule of llama.cpp.

    That rule asks the first layer's head dimension, which may be another cache's than this.
    """
    if does is not None:
        return does
    if dim <= 0 or is_rotation_off():
        return False
    are_divided = {each % SMALLEST_ROTATION == 0 for each in dims}
    if len(are_divided) > 1:
        raise StateError(
            f"its caches have heads of {', '.join(map(str, dims))} elements, and llama.cpp does "
            "not say which of them it rotates"
        )
    return are_divided == {True}


def _key_rotation(dim: int) -> int:
    return dim & -dim


@dataclass(frozen=True, slots=True)
class Requantiser:
    """Makes states of one context out of states of other cache types.

    Raises:
        StateError: the layout forbids it; the message says why.
    """

    shape: StateLayout
    """The layout of the states of this context."""
    caches: tuple[CacheHeads, ...]
    """One for each of its attention parts."""

    def __post_init__(self) -> None:
        attention = [part for part in self.shape if isinstance(part, AttentionLayout)]
        if any(len(part.tensors) != 2 * part.n_layers for part in attention):
            raise StateError(
                "this model keeps one latent row a token in place of keys and values (MLA), and "
                "llama.cpp does not say whether it rotates that"
            )
        if len(attention) != len(self.caches):
            raise StateError(
                f"its states have {len(attention)} parts of keys and values and llama.cpp spoke of "
                f"{len(self.caches)}"
            )

    def convert(self, state: State, types: KVTypes) -> State:
        """A state of these cache types in those of the context.

        Raises:
            StateError: it is damaged or of another layout, or its rotation is not known.
        """
        source = tuple(_with_types(part, types) for part in self.shape)
        if source == self.shape:
            read_parts(state, source)
            return state
        data, turned = memoryview(state), iter(self._rotations())
        pieces: list[State] = []
        start = 0
        for part, before, after in zip(read_parts(state, source), source, self.shape, strict=True):
            if not isinstance(before, AttentionLayout):
                continue
            rotation = next(turned)
            for index, (old, new) in enumerate(zip(before.tensors, after.tensors, strict=True)):
                at, header = part.offsets[index], tensor_header(new)
                end = at + len(part.records) * old.row_bytes
                size = rotation.k if index < before.n_layers else rotation.v
                made = _converted(data[at:end], old, new, rotation=size)
                pieces += (data[start : at - len(header)], header, made)
                start = end
        return b"".join((*pieces, data[start:]))

    def _rotations(self) -> tuple[Rotations, ...]:
        first = next(part for part in self.shape if isinstance(part, AttentionLayout))
        return rotations(
            self.caches,
            is_k_quantised=_kind(first.tensors[0]).block_size > 1,
            is_v_quantised=_kind(first.tensors[-1]).block_size > 1,
        )


def _with_types(
    part: AttentionLayout | RecurrentLayout, types: KVTypes
) -> AttentionLayout | RecurrentLayout:
    if isinstance(part, RecurrentLayout):
        return part
    if part.is_transposed and GGML_TYPES[TYPE_NUMBERS[types.v]].block_size > 1:
        raise StateError(
            f"values lie transposed without flash attention, and those in {types.v} need it"
        )
    names = [types.k] * part.n_layers + [types.v] * part.n_layers
    tensors = (_of_type(each, name) for each, name in zip(part.tensors, names, strict=True))
    return replace(part, tensors=tuple(tensors))


def _of_type(tensor: TensorLayout, name: str) -> TensorLayout:
    number = TYPE_NUMBERS[name]
    kind = GGML_TYPES[number]
    n_elements = _n_elements(tensor)
    if n_elements % kind.block_size:
        raise StateError(f"a row of {n_elements} elements is no row of {name}")
    return TensorLayout(number, kind.row_bytes(n_elements), tensor.n_columns)


def _kind(tensor: TensorLayout) -> GgmlType:
    return GGML_TYPES[tensor.type_id]


def _n_elements(tensor: TensorLayout) -> int:
    """Elements of one cell."""
    kind = _kind(tensor)
    return tensor.row_bytes // kind.block_bytes * kind.block_size


def _converted(
    rows: memoryview, old: TensorLayout, new: TensorLayout, *, rotation: int
) -> memoryview:
    """The rows of a tensor in another type."""
    if old == new:
        return rows
    made = np.empty(len(rows) // old.row_bytes * new.row_bytes, np.uint8)
    source = np.frombuffer(rows, np.uint8)
    convert(source, made, _kind(old), _kind(new), rotation=rotation)
    return made.data
