"""Cutting saved states of full attention at any token, and joining them again.

Rows are copied by whole stretches: a state of 30 layers takes 60 copies for each of its parts,
however many tokens it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.backends.llama_cpp.state_layout import (
    COLUMNS,
    COUNT,
    HEADER,
    MAGIC,
    ROWS,
    TENSORS,
    AttentionShape,
    Part,
    State,
    Tensor,
    read_parts,
)
from engine.errors import StateError

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some cells of a state, in the order of their positions."""

    state: State
    part: Part
    cells: slice | NDArray[np.intp]
    """Rows of the state's tensors."""
    n_cells: int

    def rows(self, index: int, tensor: Tensor) -> Bytes:
        """Give the data of a tensor, `[n_cells, n_columns, element_bytes]`."""
        n_held = len(self.part.records)
        data = np.frombuffer(
            self.state, np.uint8, n_held * tensor.row_bytes, self.part.offsets[index]
        )
        return _by_cell(data, tensor, n_held)[self.cells]


def stretch(state: State, shape: AttentionShape, start: int, end: int | None = None) -> Stretch:
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
        return Stretch(state, part, slice(low, high), high - low)
    order = np.argsort(positions, kind="stable")
    if not np.array_equal(positions[order], expected):
        raise StateError("the saved state has tokens twice, or lacks some")
    return Stretch(state, part, order[low:high], high - low)


def first_position(state: State, shape: AttentionShape) -> int:
    """Give the position of the first token that a state holds.

    Raises:
        StateError: the state is damaged.
    """
    (part,) = read_parts(state, (shape,))
    return int(part.positions.min())


def join(shape: AttentionShape, stretches: Sequence[Stretch]) -> memoryview:
    """Give one state with the cells of stretches that follow one another."""
    n_cells = sum(piece.n_cells for piece in stretches)
    state = np.empty(_nbytes(shape, n_cells), np.uint8)
    HEADER.pack_into(state.data, 0, MAGIC, 0)
    COUNT.pack_into(state.data, HEADER.size, shape.n_streams)
    COUNT.pack_into(state.data, HEADER.size + COUNT.size, n_cells)
    at = _put_records(state, HEADER.size + 2 * COUNT.size, shape, stretches, n_cells)
    TENSORS.pack_into(state.data, at, shape.is_transposed, shape.n_layers)
    at += TENSORS.size
    for index, tensor in enumerate(shape.tensors):
        at = _put_tensor(state, at, index, tensor, stretches, n_cells)
    state[at:] = 0
    return state.data.toreadonly()


def _nbytes(shape: AttentionShape, n_cells: int) -> int:
    fixed = HEADER.size + COUNT.size * (1 + shape.n_streams) + TENSORS.size
    of_tensors = sum(
        (COLUMNS if tensor.n_columns else ROWS).size + n_cells * tensor.row_bytes
        for tensor in shape.tensors
    )
    return fixed + 4 * n_cells * shape.record_ints + of_tensors


def _put_records(
    state: Bytes, at: int, shape: AttentionShape, stretches: Sequence[Stretch], n_cells: int
) -> int:
    end = at + 4 * n_cells * shape.record_ints
    records = state[at:end].view("<i4").reshape(n_cells, -1)
    row = 0
    for piece in stretches:
        records[row : row + piece.n_cells] = piece.part.records[piece.cells]
        row += piece.n_cells
    records[:, -1] = 0
    return end


def _put_tensor(
    state: Bytes,
    at: int,
    index: int,
    tensor: Tensor,
    stretches: Sequence[Stretch],
    n_cells: int,
) -> int:
    start = _put_tensor_header(state.data, at, tensor)
    end = start + n_cells * tensor.row_bytes
    rows = _by_cell(state[start:end], tensor, n_cells)
    row = 0
    for piece in stretches:
        rows[row : row + piece.n_cells] = piece.rows(index, tensor)
        row += piece.n_cells
    return end


def _put_tensor_header(state: memoryview, at: int, tensor: Tensor) -> int:
    if tensor.n_columns:
        element_bytes = tensor.row_bytes // tensor.n_columns
        COLUMNS.pack_into(state, at, tensor.type_id, element_bytes, tensor.n_columns)
        return at + COLUMNS.size
    ROWS.pack_into(state, at, tensor.type_id, tensor.row_bytes)
    return at + ROWS.size


def _by_cell(data: Bytes, tensor: Tensor, n_cells: int) -> Bytes:
    """Give the data of a tensor as `[n_cells, n_columns, element_bytes]`, a view.

    Rows that are not transposed have one column.
    """
    if tensor.n_columns:
        return data.reshape(tensor.n_columns, n_cells, -1).transpose(1, 0, 2)
    return data.reshape(n_cells, 1, -1)
