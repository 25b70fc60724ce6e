"""Split saved states at any token and join them.

Cells are copied by ranges: a state of 30 layers needs 60 copies per part, regardless of its number
of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.backends.llama_cpp.state_format import (
    COUNT,
    HEADER,
    MAGIC,
    TENSORS,
    AttentionLayout,
    State,
    StatePart,
    TensorLayout,
    read_parts,
    tensor_header,
)
from engine.errors import StateError

Bytes = NDArray[np.uint8]
CellIndex = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Cells:
    """Some cells of a part, in any order."""

    state: State
    part: StatePart
    cells: CellIndex
    """Indices of the cells in the part's tensors."""
    n_cells: int

    def rows(self, index: int, tensor: TensorLayout) -> Bytes:
        """The data of a tensor, `[n_cells, n_columns, element_bytes]`."""
        n_held = len(self.part.records)
        data = np.frombuffer(
            self.state, np.uint8, n_held * tensor.row_bytes, self.part.offsets[index]
        )
        return _by_cell(data, tensor, n_held)[self.cells]


Placed = Sequence[tuple[CellIndex, Cells]]
"""Cells and their rows in the written part."""


def follow_one_another(pieces: Sequence[Cells]) -> Placed:
    """Place the cells of each piece after those of the previous one."""
    placed = []
    row = 0
    for piece in pieces:
        placed.append((slice(row, row + piece.n_cells), piece))
        row += piece.n_cells
    return placed


def attention_nbytes(shape: AttentionLayout, n_cells: int) -> int:
    """The size of an attention part."""
    of_tensors = sum(
        len(tensor_header(tensor)) + n_cells * tensor.row_bytes for tensor in shape.tensors
    )
    fixed = COUNT.size * (1 + shape.n_streams) + TENSORS.size
    return fixed + 4 * n_cells * shape.record_ints + of_tensors


def put_attention(
    state: Bytes, at: int, shape: AttentionLayout, n_cells: int, placed: Placed
) -> int:
    """Write an attention part with all cells in the first stream; return its end offset."""
    end = at + attention_nbytes(shape, n_cells)
    COUNT.pack_into(state.data, at, shape.n_streams)
    COUNT.pack_into(state.data, at + COUNT.size, n_cells)
    at = _put_records(state, at + 2 * COUNT.size, shape, n_cells, placed)
    TENSORS.pack_into(state.data, at, shape.is_transposed, shape.n_layers)
    at += TENSORS.size
    for index, tensor in enumerate(shape.tensors):
        header = tensor_header(tensor)
        start = at + len(header)
        state.data[at:start] = header
        at = start + n_cells * tensor.row_bytes
        rows = _by_cell(state[start:at], tensor, n_cells)
        for cells, piece in placed:
            rows[cells] = piece.rows(index, tensor)
    state[at:end] = 0
    return end


def _put_records(
    state: Bytes, at: int, shape: AttentionLayout, n_cells: int, placed: Placed
) -> int:
    end = at + 4 * n_cells * shape.record_ints
    records = state[at:end].view("<i4").reshape(n_cells, -1)
    for cells, piece in placed:
        records[cells] = piece.part.records[piece.cells]
    records[:, -1] = 0
    return end


def _by_cell(data: Bytes, tensor: TensorLayout, n_cells: int) -> Bytes:
    """The data of a tensor as `[n_cells, n_columns, element_bytes]`, a view.

    Tensors that are not transposed have one column.
    """
    if tensor.n_columns:
        return data.reshape(tensor.n_columns, n_cells, -1).transpose(1, 0, 2)
    return data.reshape(n_cells, 1, -1)


def cell_range(state: State, shape: AttentionLayout, start: int, end: int | None = None) -> Cells:
    """The cells of positions `start` to `end`, which must all be in the state.

    Raises:
        StateError: the state is damaged, or lacks positions.
    """
    (part,) = read_parts(state, (shape,))
    positions = part.positions
    first = int(positions.min())
    n_held = len(positions)
    last = first + n_held if end is None else end
    if not first <= start < last <= first + n_held:
        raise StateError(
            f"the saved state contains tokens {first} to {first + n_held}, but {start} to "
            f"{last} were requested"
        )
    expected = np.arange(first, first + n_held, dtype=np.int32)
    low, high = start - first, last - first
    if np.array_equal(positions, expected):
        return Cells(state, part, slice(low, high), high - low)
    order = np.argsort(positions, kind="stable")
    if not np.array_equal(positions[order], expected):
        raise StateError("the saved state is damaged: tokens are missing or repeated")
    return Cells(state, part, order[low:high], high - low)


def first_position(state: State, shape: AttentionLayout) -> int:
    """Position of the first token in a state.

    Raises:
        StateError: the state is damaged.
    """
    (part,) = read_parts(state, (shape,))
    return int(part.positions.min())


def join(shape: AttentionLayout, pieces: Sequence[Cells]) -> memoryview:
    """Join consecutive pieces to one state."""
    n_cells = sum(piece.n_cells for piece in pieces)
    state = np.empty(HEADER.size + attention_nbytes(shape, n_cells), np.uint8)
    HEADER.pack_into(state.data, 0, MAGIC, 0)
    put_attention(state, HEADER.size, shape, n_cells, follow_one_another(pieces))
    return state.data.toreadonly()
