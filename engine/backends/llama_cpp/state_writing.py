"""Writing the attention part of a state from cells of others.

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
    ROWS,
    TENSORS,
    AttentionShape,
    Part,
    State,
    Tensor,
)

Bytes = NDArray[np.uint8]
Rows = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Cells:
    """Some cells of a part, in an order of their own."""

    state: State
    part: Part
    cells: Rows
    """Rows of the part's tensors."""
    n_cells: int

    def rows(self, index: int, tensor: Tensor) -> Bytes:
        """Give the data of a tensor, `[n_cells, n_columns, element_bytes]`."""
        n_held = len(self.part.records)
        data = np.frombuffer(
            self.state, np.uint8, n_held * tensor.row_bytes, self.part.offsets[index]
        )
        return _by_cell(data, tensor, n_held)[self.cells]


Placed = Sequence[tuple[Rows, Cells]]
"""Cells, and the rows of the written part where they go."""


def follow_one_another(pieces: Sequence[Cells]) -> Placed:
    """Place cells behind those before."""
    placed = []
    row = 0
    for piece in pieces:
        placed.append((slice(row, row + piece.n_cells), piece))
        row += piece.n_cells
    return placed


def attention_nbytes(shape: AttentionShape, n_cells: int) -> int:
    """Give the size of an attention part."""
    of_tensors = sum(
        (COLUMNS if tensor.n_columns else ROWS).size + n_cells * tensor.row_bytes
        for tensor in shape.tensors
    )
    fixed = COUNT.size * (1 + shape.n_streams) + TENSORS.size
    return fixed + 4 * n_cells * shape.record_ints + of_tensors


def put_attention(
    state: Bytes, at: int, shape: AttentionShape, n_cells: int, placed: Placed
) -> int:
    """Write an attention part at a byte, all cells in the first stream, and give its end."""
    end = at + attention_nbytes(shape, n_cells)
    COUNT.pack_into(state.data, at, shape.n_streams)
    COUNT.pack_into(state.data, at + COUNT.size, n_cells)
    at = _put_records(state, at + 2 * COUNT.size, shape, n_cells, placed)
    TENSORS.pack_into(state.data, at, shape.is_transposed, shape.n_layers)
    at += TENSORS.size
    for index, tensor in enumerate(shape.tensors):
        start = _put_tensor_header(state.data, at, tensor)
        at = start + n_cells * tensor.row_bytes
        rows = _by_cell(state[start:at], tensor, n_cells)
        for place, piece in placed:
            rows[place] = piece.rows(index, tensor)
    state[at:end] = 0
    return end


def _put_records(state: Bytes, at: int, shape: AttentionShape, n_cells: int, placed: Placed) -> int:
    end = at + 4 * n_cells * shape.record_ints
    records = state[at:end].view("<i4").reshape(n_cells, -1)
    for place, piece in placed:
        records[place] = piece.part.records[piece.cells]
    records[:, -1] = 0
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
