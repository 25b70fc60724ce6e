"""Select cells of saved states by position, and join consecutive states to one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.backends.llama_cpp.state_format import (
    COUNT,
    HEADER,
    MAGIC,
    TENSORS,
    AttentionLayout,
    Integers,
    State,
    StatePart,
    TensorLayout,
    read_parts,
    tensor_header,
)
from engine.errors import StateError

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a state in the order of their tokens."""

    state: State
    part: StatePart
    index: slice | NDArray[np.intp]
    """The cells in the part; a slice if they are already in order."""

    @property
    def records(self) -> Integers:
        """The records of the cells, `[n_cells, record_ints]`."""
        return self.part.records[self.index]

    def rows(self, number: int, tensor: TensorLayout) -> Bytes:
        """The data of a tensor, `[n_columns, n_cells, element_bytes]`.

        Tensors that are not transposed have one column.
        """
        n_held = len(self.part.records)
        nbytes, start = n_held * tensor.row_bytes, self.part.offsets[number]
        data = np.frombuffer(self.state, np.uint8, nbytes, start)
        return data.reshape(tensor.n_columns or 1, n_held, -1)[:, self.index]


def cells_from(state: State, shape: AttentionLayout, start: int) -> Cells:
    """The cells of a state from position `start` on.

    Raises:
        StateError: the state is damaged, or lacks the position.
    """
    (part,) = read_parts(state, (shape,))
    order = np.argsort(part.positions, kind="stable")
    first = int(part.positions[order[0]])
    end = first + len(order)
    expected = np.arange(first, end)
    if not np.array_equal(part.positions[order], expected):
        raise StateError("the saved state is damaged: tokens are missing or repeated")
    if not first <= start < end:
        raise StateError(
            f"the saved state contains tokens {first} to {end}, but token {start} was requested"
        )
    is_ordered = np.array_equal(order, expected - first)
    return Cells(state, part, slice(start - first, None) if is_ordered else order[start - first :])


def join(shape: AttentionLayout, pieces: Sequence[Cells]) -> memoryview:
    """Join consecutive cells to one state, with all cells in the first stream."""
    state = bytearray()
    for chunk in _chunks(shape, pieces):
        state += chunk
    return memoryview(state).toreadonly()


def _chunks(shape: AttentionLayout, pieces: Sequence[Cells]) -> Iterator[bytes | memoryview]:
    records = np.concatenate([each.records for each in pieces])
    records[:, -1] = 0
    yield HEADER.pack(MAGIC, 0) + COUNT.pack(shape.n_streams) + COUNT.pack(len(records))
    yield records.data
    yield TENSORS.pack(shape.is_transposed, shape.n_layers)
    for number, tensor in enumerate(shape.tensors):
        yield tensor_header(tensor)
        rows = np.concatenate([each.rows(number, tensor) for each in pieces], axis=1)
        yield np.ascontiguousarray(rows).data
    yield COUNT.pack(0) * (shape.n_streams - 1)
