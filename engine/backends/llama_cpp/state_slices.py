"""Cutting saved states of full attention at any token, and joining them again."""

from collections.abc import Sequence

import numpy as np

from engine.backends.llama_cpp.state_layout import (
    HEADER,
    MAGIC,
    AttentionShape,
    State,
    read_parts,
)
from engine.backends.llama_cpp.state_writing import (
    Cells,
    attention_nbytes,
    follow_one_another,
    put_attention,
)
from engine.errors import StateError


def stretch(state: State, shape: AttentionShape, start: int, end: int | None = None) -> Cells:
    """Give the cells of positions `start` to `end`; the state must have them all.

    Raises:
        StateError: the state is damaged, or its positions are others.
    """
    (part,) = read_parts(state, (shape,))
    positions = part.positions
    first = int(positions.min())
    n_held = len(positions)
    last = first + n_held if end is None else end
    if not first <= start < last <= first + n_held:
        raise StateError(
            f"the saved state holds tokens {first} to {first + n_held} and {start} to {last} "
            "were asked"
        )
    expected = np.arange(first, first + n_held, dtype=np.int32)
    low, high = start - first, last - first
    if np.array_equal(positions, expected):
        return Cells(state, part, slice(low, high), high - low)
    order = np.argsort(positions, kind="stable")
    if not np.array_equal(positions[order], expected):
        raise StateError("the saved state has tokens twice, or lacks some")
    return Cells(state, part, order[low:high], high - low)


def first_position(state: State, shape: AttentionShape) -> int:
    """Give the position of the first token that a state holds.

    Raises:
        StateError: the state is damaged.
    """
    (part,) = read_parts(state, (shape,))
    return int(part.positions.min())


def join(shape: AttentionShape, stretches: Sequence[Cells]) -> memoryview:
    """Give one state with the cells of stretches that follow one another."""
    n_cells = sum(piece.n_cells for piece in stretches)
    state = np.empty(HEADER.size + attention_nbytes(shape, n_cells), np.uint8)
    HEADER.pack_into(state.data, 0, MAGIC, 0)
    put_attention(state, HEADER.size, shape, n_cells, follow_one_another(stretches))
    return state.data.toreadonly()
