"""Elements of one ggml type in another, by ggml's own routines.

A type is read by `to_float` of `ggml_get_type_traits` and written by `from_float` of
`ggml_get_type_traits_cpu` (ggml of llama.cpp commit 0c1e57098), with which `ggml_set_rows` fills a
cache on a processor. `ggml_quantize_chunk` is another routine: it searches longer for the scales of
iq4_nl, and rounds q8_0 otherwise.
"""

import ctypes
import math
from collections.abc import Callable
from functools import cache

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.memory.units import FLOAT_BYTES
from engine.model.ggml_types import TYPE_NUMBERS, GgmlType

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

CHUNK_ELEMENTS = 1 << 16
"""Elements that are worked on at once, so that they stay in a core's cache: 256 KiB as floats."""

Rows = Callable[[int, int, int], object]
"""Called with two addresses and a number of elements: fills the second from the first."""


def convert(
    source: Bytes, target: Bytes, before: GgmlType, after: GgmlType, *, rotation: int
) -> None:
    """Fill `target` with the elements of `source` in another type.

    Args:
        source: Whole blocks of the type `before`.
        target: As many elements of the type `after`.
        before: What is read.
        after: What is written.
        rotation: Elements of the stretches that lie rotated in a quantised type; 0 for none.
    """
    turns = rotation > 0 and (before.block_size > 1) != (after.block_size > 1)
    read, write = _reader(before), _writer(after)
    n_elements = len(source) // before.block_bytes * before.block_size
    step = max(CHUNK_ELEMENTS, rotation)
    floats = np.empty(step, np.float32)
    for start in range(0, n_elements, step):
        n = min(step, n_elements - start)
        at = source.ctypes.data + start // before.block_size * before.block_bytes
        read(at, floats.ctypes.data, n)
        values = hadamard_rotate(floats[:n], rotation) if turns else floats[:n]
        write(
            values.ctypes.data,
            target.ctypes.data + start // after.block_size * after.block_bytes,
            n,
        )


def hadamard_rotate(values: Floats, size: int) -> Floats:
    """Every stretch of `size` elements times the orthonormal Walsh-Hadamard matrix.

    The sums are taken in the order of ggml's `ggml_compute_forward_fwht`, to the bit.
    """
    lanes = np.ascontiguousarray(values.reshape(-1, size).T) * np.float32(1 / math.sqrt(size))
    length = 1
    while length < size:
        pairs = lanes.reshape(size // (2 * length), 2, length, -1)
        lanes = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1)
        length *= 2
    return np.ascontiguousarray(lanes.reshape(size, -1).T).reshape(-1)


class _Traits(ctypes.Structure):
    """`struct ggml_type_traits` of `ggml.h`."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantised", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


class _ProcessorTraits(ctypes.Structure):
    """How `struct ggml_type_traits_cpu` of `ggml-cpu.h` begins."""

    _fields_ = (("from_float", ctypes.c_void_p),)


def _reader(kind: GgmlType) -> Rows:
    return _copy if kind.name == "f32" else _native(_traits(kind).to_float)


def _writer(kind: GgmlType) -> Rows:
    """The processor kernels' routine; where they are loaded apart, ggml's reference."""
    if kind.name == "f32":
        return _copy
    ask = getattr(llama_cpp.llama_cpp._lib, "ggml_get_type_traits_cpu", None)
    if ask is None:
        return _native(_traits(kind).from_float)
    ask.argtypes, ask.restype = [ctypes.c_int], ctypes.POINTER(_ProcessorTraits)
    return _native(ask(TYPE_NUMBERS[kind.name]).contents.from_float)


@cache
def _traits(kind: GgmlType) -> _Traits:
    ask = llama_cpp.llama_cpp._lib.ggml_get_type_traits
    ask.argtypes, ask.restype = [ctypes.c_int], ctypes.POINTER(_Traits)
    traits: _Traits = ask(TYPE_NUMBERS[kind.name]).contents
    return traits


def _native(address: int) -> Rows:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)


def _copy(source: int, target: int, n_elements: int) -> None:
    ctypes.memmove(target, source, FLOAT_BYTES * n_elements)
