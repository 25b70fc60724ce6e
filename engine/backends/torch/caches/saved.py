"""Tensors with names as bytes: a header of JSON, then their elements in order.

Nothing of it is executed when it is read, and sizes are held against the bytes that are there.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from engine.errors import StateError
from engine.parsing import parse_json

MAGIC: Final = b"kvcT1"
MOST_HEADER_BYTES = 1 << 16
MOST_ELEMENTS = 1 << 48
"""Of a shape, empty sides counted as one: torch computes their strides in 64 bits."""
DTYPES = {
    str(each).removeprefix("torch."): each
    for each in (
        torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int64,
    )
}  # fmt: skip


def write_tensors(kind: str, length: int, tensors: Mapping[str, Tensor]) -> bytes:
    """A cache's tensors as bytes, with the name of its kind and the tokens it has seen."""
    header = {
        "kind": kind,
        "length": length,
        "tensors": {
            name: [str(each.dtype).removeprefix("torch."), list(each.shape)]
            for name, each in tensors.items()
        },
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    parts = [MAGIC, struct.pack("<I", len(text)), text]
    parts += [_bytes_of(each) for each in tensors.values()]
    return b"".join(parts)


def read_tensors(
    saved: bytes | memoryview, kind: str, names: tuple[str, ...], device: torch.device
) -> tuple[int, dict[str, Tensor]]:
    """The tokens seen and the tensors, as `write_tensors` wrote them.

    Raises:
        StateError: another kind, other tensors, or sizes that the bytes do not have.
    """
    view = memoryview(saved).cast("B")
    try:
        header, start = _header(view)
        if header["kind"] != kind:
            raise StateError(f"the state is one of {header['kind']!r}, and this cache is {kind!r}")
        length, described = header["length"], header["tensors"]
        if type(length) is not int or length < 0 or tuple(described) != names:
            raise StateError("the saved state names other tensors than this cache has")
        found = {}
        for name, (dtype, shape) in described.items():
            found[name], start = _tensor(view, start, DTYPES[dtype], shape)
    except (KeyError, TypeError, ValueError, struct.error, RecursionError) as error:
        raise StateError("the saved state is damaged") from error
    if start != len(view):
        raise StateError(f"the saved state has {len(view)} bytes and describes {start}")
    return length, {name: each.to(device) for name, each in found.items()}


def _header(view: memoryview) -> tuple[dict[str, Any], int]:
    start = len(MAGIC) + 4
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise StateError("the bytes are no saved state of a torch cache")
    (size,) = struct.unpack("<I", view[len(MAGIC) : start])
    if size > MOST_HEADER_BYTES:
        raise StateError("the saved state is damaged")
    header = parse_json(bytes(view[start : start + size]))
    if not isinstance(header, dict) or not isinstance(header.get("tensors"), dict):
        raise StateError("the saved state is damaged")
    return header, start + size


def _tensor(
    view: memoryview, start: int, dtype: torch.dtype, shape: list[int]
) -> tuple[Tensor, int]:
    is_shape = all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or math.prod(max(size, 1) for size in shape) > MOST_ELEMENTS:
        raise StateError("the saved state is damaged")
    end = start + math.prod(shape) * dtype.itemsize
    if end > len(view):
        raise StateError(f"the saved state has {len(view)} bytes and describes more")
    if start == end:
        return torch.empty(shape, dtype=dtype), end
    data = torch.frombuffer(bytearray(view[start:end]), dtype=torch.uint8)
    return data.view(dtype).view(shape), end


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
