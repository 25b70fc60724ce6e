"""Layout of a saved state of llama.cpp, so that it can be checked and split.

Source: `llama-kv-cache.cpp` and `llama-memory-recurrent.cpp`, `state_write`, of llama.cpp commit
0c1e57098 (state version 3). All numbers are little-endian.

- A state: magic, sequence id, then one part for each cache of the model (two if some layers have a
  sliding window; an attention part and a recurrent one in hybrid models).
- An attention part: number of streams; for each stream the number of cells and, unless that is 0, a
  record for each cell (position, 1, sequence id; three integers before the last if positions are
  multi-dimensional), whether values are transposed, number of layers, then keys of each layer,
  then values of each. Only the sequence's own stream has cells.
- A recurrent part: number of cells, a record for each (position, 0), 0, number of layers, then two
  types of rows for the layers with a state.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.errors import StateError

MAGIC = 0xAF143CD8
HEADER = struct.Struct("<Ii")
COUNT = struct.Struct("<I")
TENSORS = struct.Struct("<II")
ROWS = struct.Struct("<iQ")
COLUMNS = struct.Struct("<iII")

State = bytes | memoryview
Integers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Format of keys, values or a recurrent state of one layer in a state."""

    type_id: int
    row_bytes: int
    """Bytes of one cell."""
    n_columns: int = 0
    """Elements of one cell if values are transposed (`[n_columns, n_cells]`), else 0."""


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """Format of the attention parts of all states of a context."""

    n_streams: int
    record_ints: int
    """Integers of a cell's record: 3, or 6 with multi-dimensional positions."""
    n_layers: int
    tensors: tuple[TensorLayout, ...]
    """Keys of all layers, then values."""
    is_transposed: bool


@dataclass(frozen=True, slots=True)
class RecurrentLayout:
    """Format of the recurrent parts of all states of a context."""

    n_layers: int
    tensors: tuple[TensorLayout, ...]


StateLayout = tuple[AttentionLayout | RecurrentLayout, ...]


@dataclass(frozen=True, slots=True)
class StatePart:
    """One part of a state with the offsets of its cells."""

    shape: AttentionLayout | RecurrentLayout
    end: int
    """Byte offset of the next part."""
    records: Integers
    """`[n_cells, record_ints]`: position first."""
    offsets: tuple[int, ...]
    """Byte offset of the data of each tensor."""

    @property
    def positions(self) -> Integers:
        return self.records[:, 0]


@dataclass(slots=True)
class Cursor:
    """Reads numbers of a state in sequence; raises `StateError` beyond its end."""

    state: State
    at: int = 0

    def read(self, form: struct.Struct) -> tuple[int, ...]:
        """Read the numbers at the cursor."""
        start = self.at
        self.skip(form.size)
        return form.unpack_from(self.state, start)

    def skip(self, nbytes: int) -> int:
        """Skip some bytes; return their offset."""
        if nbytes > len(self.state) - self.at:
            raise StateError(
                f"the saved state is truncated: it has {len(self.state)} bytes instead of at "
                f"least {self.at + nbytes}"
            )
        start = self.at
        self.at += nbytes
        return start

    def records(self, n_cells: int, n_ints: int) -> Integers:
        """The records of cells, `[n_cells, n_ints]`."""
        start = self.skip(4 * n_cells * n_ints)
        flat = np.frombuffer(self.state, dtype="<i4", count=n_cells * n_ints, offset=start)
        return flat.reshape(n_cells, n_ints)


MAX_STREAMS = 256
MAX_LAYERS = 1024
MAX_TYPE = 64
MAX_ROW_BYTES = 1 << 24
MAX_PARTS = 4


def read_parts(state: State, shape: StateLayout) -> tuple[StatePart, ...]:
    """Locate the parts of a state with this layout.

    Raises:
        StateError: the state has another layout or length.
    """
    start = check_magic(state)
    for parts in _readings(state, start, len(shape)):
        if tuple(part.shape for part in parts) == shape:
            return parts
    raise StateError(
        "the saved state is truncated, damaged, or from another model, cache type or build"
    )


def find_shape(state: State) -> StateLayout | None:
    """The layout of a state that a context has just written; None if it is unknown."""
    try:
        parts = next(_readings(state, check_magic(state), MAX_PARTS), None)
    except StateError:
        return None
    return None if parts is None else tuple(part.shape for part in parts)


def check_magic(state: State) -> int:
    """Check the header of a state; return its end offset.

    Raises:
        StateError: it is not a state of llama.cpp.
    """
    cursor = Cursor(state)
    magic, _ = cursor.read(HEADER)
    if magic != MAGIC:
        raise StateError("the saved state was not written by llama.cpp: its magic number is wrong")
    return cursor.at


def _readings(state: State, at: int, n_left: int) -> Iterator[tuple[StatePart, ...]]:
    """All ways to parse the rest of a state as parts."""
    if at == len(state):
        yield ()
        return
    if not n_left:
        return
    for part in _first_parts(state, at):
        for rest in _readings(state, part.end, n_left - 1):
            yield (part, *rest)


def _first_parts(state: State, at: int) -> Iterator[StatePart]:
    for record_ints in (3, 6):
        for has_values in (True, False):
            with suppress(StateError):
                yield _read_attention(Cursor(state, at), record_ints, has_values=has_values)
    with suppress(StateError):
        yield from _read_recurrent(Cursor(state, at))


def _read_attention(cursor: Cursor, record_ints: int, *, has_values: bool) -> StatePart:
    (n_streams,) = cursor.read(COUNT)
    _expect(0 < n_streams <= MAX_STREAMS)
    found: list[StatePart] = []
    for _ in range(n_streams):
        (n_cells,) = cursor.read(COUNT)
        if not n_cells:
            continue
        records = cursor.records(n_cells, record_ints)
        _expect(not found and bool((records[:, 1] == 1).all()))
        is_transposed, n_layers = cursor.read(TENSORS)
        _expect(is_transposed <= 1 and n_layers <= MAX_LAYERS)
        rows = [_read_tensor(cursor, n_cells) for _ in range(n_layers)]
        if has_values:
            columns = bool(is_transposed)
            rows += [_read_tensor(cursor, n_cells, columns=columns) for _ in range(n_layers)]
        tensors, offsets = zip(*rows, strict=True) if rows else ((), ())
        shape = AttentionLayout(n_streams, record_ints, n_layers, tensors, bool(is_transposed))
        found.append(StatePart(shape, cursor.at, records, offsets))
    _expect(bool(found))
    return replace(found[0], end=cursor.at)


def _read_recurrent(cursor: Cursor) -> Iterator[StatePart]:
    """Try each number of tensors: the header has the number of layers, not which have a state."""
    (n_cells,) = cursor.read(COUNT)
    _expect(n_cells == 1)
    records = cursor.records(1, 2)
    is_transposed, n_layers = cursor.read(TENSORS)
    _expect(not records[0, 1] and not is_transposed and 0 < n_layers <= MAX_LAYERS)
    tensors: tuple[TensorLayout, ...] = ()
    offsets: tuple[int, ...] = ()
    for _ in range(2 * n_layers):
        tensor, offset = _read_tensor(cursor, 1)
        tensors, offsets = (*tensors, tensor), (*offsets, offset)
        yield StatePart(RecurrentLayout(n_layers, tensors), cursor.at, records, offsets)


def _read_tensor(
    cursor: Cursor, n_cells: int, *, columns: bool = False
) -> tuple[TensorLayout, int]:
    if columns:
        type_id, element_bytes, n_columns = cursor.read(COLUMNS)
        tensor = TensorLayout(type_id, element_bytes * n_columns, n_columns)
    else:
        tensor = TensorLayout(*cursor.read(ROWS))
    _expect(0 <= tensor.type_id < MAX_TYPE and tensor.row_bytes <= MAX_ROW_BYTES)
    return tensor, cursor.skip(n_cells * tensor.row_bytes)


def tensor_header(tensor: TensorLayout) -> bytes:
    """The bytes before the data of a tensor."""
    if tensor.n_columns:
        element_bytes = tensor.row_bytes // tensor.n_columns
        return COLUMNS.pack(tensor.type_id, element_bytes, tensor.n_columns)
    return ROWS.pack(tensor.type_id, tensor.row_bytes)


def _expect(is_right: bool) -> None:
    if not is_right:
        raise StateError("the saved state has an unknown layout")
