"""What is saved of a sequence: the bytes of each layer's cache, one behind the other."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backends.torch.caches.saved import read_tensors, write_tensors
from engine.errors import StateError

State = bytes | memoryview

FORMAT = "torch state 1"
HEADER = struct.Struct("<4sIQQ")
"""Magic, layers, the token of the line that it begins with, tokens."""
MAGIC = b"kvtS"
SIZE = struct.Struct("<Q")
MOST_LAYERS = 10_000
SLICED, TENSORS = "dense", ("keys", "values")
"""The kind of cache whose entries are tokens in order, and its tensors `[.., .., tokens, ..]`."""


@dataclass(frozen=True, slots=True)
class Layers:
    """A state that was read."""

    start: int
    n_tokens: int
    saved: tuple[memoryview, ...]
    """One a layer, as its cache saved it."""


def write_layers(start: int, n_tokens: int, saved: Sequence[State]) -> bytes:
    """A state of the caches' bytes."""
    parts: list[State] = [HEADER.pack(MAGIC, len(saved), start, n_tokens)]
    for layer in saved:
        parts += (SIZE.pack(len(layer)), layer)
    return b"".join(parts)


def read_layers(state: State) -> Layers:
    """The caches' bytes of a state.

    Raises:
        StateError: it is damaged, or none of torch's.
    """
    view = memoryview(state).cast("B")
    if len(view) < HEADER.size:
        raise StateError(f"a saved state of {len(view)} bytes is too short")
    magic, n_layers, start, n_tokens = HEADER.unpack_from(view)
    if magic != MAGIC or n_layers > MOST_LAYERS:
        raise StateError("the saved state is damaged, or of another backend")
    at, saved = HEADER.size, []
    for _ in range(n_layers):
        if at + SIZE.size > len(view):
            raise StateError("the saved state is truncated")
        (size,) = SIZE.unpack_from(view, at)
        at += SIZE.size
        if at + size > len(view):
            raise StateError("the saved state is truncated")
        saved.append(view[at : at + size])
        at += size
    if at != len(view):
        raise StateError(f"the saved state has {len(view)} bytes and describes {at}")
    return Layers(start, n_tokens, tuple(saved))


def cut(state: State, at: int) -> tuple[bytes, bytes]:
    """A state of full attention in two, the first with `at` tokens.

    Raises:
        StateError: it is damaged, of caches that cannot be cut, or has not more than `at` tokens.
    """
    layers = read_layers(state)
    if not 0 < at < layers.n_tokens:
        raise StateError(f"a state of {layers.n_tokens} tokens cannot be cut behind {at}")
    fronts, backs = [], []
    for saved in layers.saved:
        held = _rows(saved, layers.n_tokens)
        fronts.append(_saved(at, [each[:, :, :at] for each in held]))
        backs.append(_saved(layers.n_tokens - at, [each[:, :, at:] for each in held]))
    return (
        write_layers(layers.start, at, fronts),
        write_layers(layers.start + at, layers.n_tokens - at, backs),
    )


def join_layers(states: Sequence[Layers], n_tokens: int) -> tuple[State, ...]:
    """The bytes of each cache that holds states which follow one another.

    Raises:
        StateError: they do not follow one another, or hold another number of tokens.
    """
    end = 0
    for each in states:
        if each.start != end or len(each.saved) != len(states[0].saved):
            raise StateError(f"a saved state begins at {each.start} where {end} tokens are held")
        end += each.n_tokens
    if end != n_tokens or not states:
        raise StateError(f"the saved states hold {end} tokens where {n_tokens} were expected")
    if len(states) == 1:
        return states[0].saved
    return tuple(
        _joined([(saved, each.n_tokens) for saved, each in zip(layer, states, strict=True)])
        for layer in zip(*(each.saved for each in states), strict=True)
    )


def _joined(parts: Sequence[tuple[State, int]]) -> bytes:
    rows = [_rows(saved, n_tokens) for saved, n_tokens in parts]
    first = [(each.dtype, each.shape[:2], each.shape[3:]) for each in rows[0]]
    for others in rows[1:]:
        if [(each.dtype, each.shape[:2], each.shape[3:]) for each in others] != first:
            raise StateError("the saved states are of different models or cache types")
    n_tokens = sum(n for _, n in parts)
    return _saved(n_tokens, [torch.cat(each, dim=2) for each in zip(*rows, strict=True)])


def _rows(saved: State, n_tokens: int) -> list[Tensor]:
    length, held = read_tensors(saved, SLICED, TENSORS, torch.device("cpu"))
    rows = [held[name] for name in TENSORS]
    if length != n_tokens or any(each.dim() != 4 or each.shape[2] != n_tokens for each in rows):
        raise StateError(f"a layer of the saved state does not hold its {n_tokens} tokens")
    return rows


def _saved(n_tokens: int, rows: Sequence[Tensor]) -> bytes:
    return write_tensors(SLICED, n_tokens, dict(zip(TENSORS, rows, strict=True)))
