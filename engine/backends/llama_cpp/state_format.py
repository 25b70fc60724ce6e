"""Where things lie in a saved state of llama.cpp, so that it can be checked and cut.

Source: `llama-kv-cache.cpp` and `llama-memory-recurrent.cpp`, `state_write`, of llama.cpp commit
0c1e57098 (state version 3). All numbers are little-endian.

- A state: magic, sequence id, then one part for each cache of the model (two where some layers have
  a sliding window, an attention part and a recurrent one in hybrid models).
- An attention part: number of streams; for each stream the number of cells and, unless that is 0, a
  record for each cell (position, 1, sequence id, and three integers before the last where positions
  are multi-dimensional), whether values are transposed, number of layers, then keys of each layer,
  then values of each. Only the sequence's own stream has cells.
- A recurrent part: number of cells, a record for each (position, 0), 0, number of layers, then two
  kinds of rows for those layers that have a state.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import StateError

MAGIC = 0xAF143CD8
HEADER = struct.Struct("<Ii")
COUNT = struct.Struct("<I")
TENSORS = struct.Struct("<II")
ROWS = struct.Struct("<iQ")
COLUMNS = struct.Struct("<iII")
RECURRENT_CELL = struct.Struct("<iI")

State = bytes | memoryview
Integers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Keys, values or a recurrent state of one layer, as a state holds them."""

    type_id: int
    row_bytes: int
    """Bytes of one cell."""
    n_columns: int = 0
    """Elements of one cell where values are transposed (`[n_columns, n_cells]`), else 0."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What is the same in the attention parts of all states of a context."""

    n_streams: int
    record_ints: int
    """Integers of a cell's record: 3, or 6 with multi-dimensional positions."""
    n_layers: int
    tensors: tuple[Tensor, ...]
    """Keys of all layers, then values."""
    is_transposed: bool


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """What is the same in the recurrent parts of all states of a context."""

    n_layers: int
    tensors: tuple[Tensor, ...]


StateShape = tuple[AttentionShape | RecurrentShape, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Where the cells of one part lie."""

    start: int
    end: int
    """Bytes of the whole part."""
    records: Integers
    """`[n_cells, record_ints]`: position first."""
    offsets: tuple[int, ...]
    """Byte at which the data of each tensor begins."""

    @property
    def positions(self) -> Integers:
        return self.records[:, 0]


class Cursor:
    """Reads numbers of a state one after the other; what lies outside is a `StateError`."""

    def __init__(self, state: State, at: int = 0) -> None:
        self.state = state
        self.at = at

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        """Read the numbers at the cursor."""
        start = self.at
        self.skip(form.size)
        return form.unpack_from(self.state, start)

    def skip(self, nbytes: int) -> int:
        """Go on by some bytes, and give where they begin."""
        if nbytes > len(self.state) - self.at:
            raise StateError(
                f"the saved state is cut off: it has {len(self.state)} bytes and "
                f"{self.at + nbytes} were expected at least"
            )
        start = self.at
        self.at += nbytes
        return start

    def records(self, n_cells: int, n_ints: int) -> Integers:
        """The records of cells, `[n_cells, n_ints]`."""
        start = self.skip(4 * n_cells * n_ints)
        flat = np.frombuffer(self.state, dtype="<i4", count=n_cells * n_ints, offset=start)
        return flat.reshape(n_cells, n_ints)


def read_parts(state: State, shape: StateShape) -> tuple[Part, ...]:
    """Where the parts of a state lie that has this shape.

    Raises:
        StateError: it has another shape, or is longer or shorter than it says.
    """
    cursor = check_magic(state)
    parts = tuple(_read_part(cursor, part) for part in shape)
    if cursor.at != len(state):
        raise StateError(f"the saved state has {len(state)} bytes where {cursor.at} were expected")
    return parts


def check_magic(state: State) -> Cursor:
    """A cursor behind the header of a state.

    Raises:
        StateError: it does not begin as states of llama.cpp do.
    """
    cursor = Cursor(state)
    magic, _ = cursor.take(HEADER)
    if magic != MAGIC:
        raise StateError("the saved state is none of llama.cpp: it begins with other bytes")
    return cursor


def _read_part(cursor: Cursor, shape: AttentionShape | RecurrentShape) -> Part:
    if isinstance(shape, RecurrentShape):
        return _read_recurrent(cursor, shape)
    return _read_attention(cursor, shape)


def _read_attention(cursor: Cursor, shape: AttentionShape) -> Part:
    start = cursor.at
    (n_streams,) = cursor.take(COUNT)
    _expect("streams", n_streams, shape.n_streams)
    found: tuple[Integers, tuple[int, ...]] | None = None
    for _ in range(n_streams):
        (n_cells,) = cursor.take(COUNT)
        if not n_cells:
            continue
        if found is not None:
            raise StateError("the saved state has cells in two streams")
        records = cursor.records(n_cells, shape.record_ints)
        if (records[:, 1] != 1).any():
            raise StateError("the saved state has cells of no sequence or of several")
        is_transposed, n_layers = cursor.take(TENSORS)
        _expect("transposed values", is_transposed, int(shape.is_transposed))
        _expect("layers", n_layers, shape.n_layers)
        found = records, _offsets(cursor, shape.tensors, n_cells)
    if found is None:
        raise StateError("the saved state has no cells")
    return Part(start, cursor.at, *found)


def _read_recurrent(cursor: Cursor, shape: RecurrentShape) -> Part:
    start = cursor.at
    (n_cells,) = cursor.take(COUNT)
    _expect("recurrent cells", n_cells, 1)
    records = cursor.records(1, 2)
    _expect("sequences of a recurrent cell", int(records[0, 1]), 0)
    is_transposed, n_layers = cursor.take(TENSORS)
    _expect("transposed states", is_transposed, 0)
    _expect("layers", n_layers, shape.n_layers)
    offsets = _offsets(cursor, shape.tensors, 1)
    return Part(start, cursor.at, records, offsets)


def _offsets(cursor: Cursor, tensors: tuple[Tensor, ...], n_cells: int) -> tuple[int, ...]:
    offsets = []
    for tensor in tensors:
        found = take_tensor(cursor, is_transposed=tensor.n_columns > 0)
        if found != tensor:
            raise StateError(
                f"the saved state has rows of type {found.type_id} and {found.row_bytes} bytes "
                f"where type {tensor.type_id} and {tensor.row_bytes} bytes were expected"
            )
        offsets.append(cursor.skip(n_cells * tensor.row_bytes))
    return tuple(offsets)


def take_tensor(cursor: Cursor, *, is_transposed: bool) -> Tensor:
    """Read the kind of the rows at the cursor, which goes to their data."""
    if is_transposed:
        type_id, element_bytes, n_columns = cursor.take(COLUMNS)
        return Tensor(type_id, element_bytes * n_columns, n_columns)
    type_id, row_bytes = cursor.take(ROWS)
    return Tensor(type_id, row_bytes)


def _expect(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise StateError(f"the saved state says {found} for {name} where {expected} was expected")


MAX_STREAMS = 256
MAX_LAYERS = 1024
MAX_TYPE = 64
MAX_ROW_BYTES = 1 << 24
MAX_PARTS = 4


def find_shape(state: State) -> StateShape | None:
    """The shape of a state that a context has just written, or None where it is not known."""
    try:
        cursor = check_magic(state)
        return next(_shapes(state, cursor.at, MAX_PARTS), None)
    except StateError:
        return None


def _shapes(state: State, at: int, n_left: int) -> Iterator[StateShape]:
    """Every way to read the rest of a state as parts."""
    if at == len(state):
        yield ()
        return
    if not n_left:
        return
    for shape, end in _first_parts(state, at):
        for rest in _shapes(state, end, n_left - 1):
            yield (shape, *rest)


def _first_parts(state: State, at: int) -> Iterator[tuple[AttentionShape | RecurrentShape, int]]:
    for record_ints in (3, 6):
        for has_values in (True, False):
            cursor = Cursor(state, at)
            try:
                yield _find_attention(cursor, record_ints, has_values=has_values), cursor.at
            except StateError:
                continue
    cursor = Cursor(state, at)
    try:
        yield from _find_recurrent(cursor)
    except StateError:
        return


def _find_attention(cursor: Cursor, record_ints: int, *, has_values: bool) -> AttentionShape:
    (n_streams,) = cursor.take(COUNT)
    if not 0 < n_streams <= MAX_STREAMS:
        raise StateError(f"{n_streams} streams")
    found: AttentionShape | None = None
    for _ in range(n_streams):
        (n_cells,) = cursor.take(COUNT)
        if not n_cells:
            continue
        records = cursor.records(n_cells, record_ints)
        if found is not None or (records[:, 1] != 1).any():
            raise StateError("other records")
        is_transposed, n_layers = cursor.take(TENSORS)
        if is_transposed > 1 or n_layers > MAX_LAYERS:
            raise StateError(f"{n_layers} layers")
        tensors = [_find_tensor(cursor, n_cells, is_transposed=False) for _ in range(n_layers)]
        if has_values:
            tensors += [
                _find_tensor(cursor, n_cells, is_transposed=bool(is_transposed))
                for _ in range(n_layers)
            ]
        found = AttentionShape(
            n_streams, record_ints, n_layers, tuple(tensors), bool(is_transposed)
        )
    if found is None:
        raise StateError("no cells")
    return found


def _find_recurrent(cursor: Cursor) -> Iterator[tuple[RecurrentShape, int]]:
    n_cells, _, n_sequences = *cursor.take(COUNT), *cursor.take(RECURRENT_CELL)
    is_transposed, n_layers = cursor.take(TENSORS)
    if n_cells != 1 or n_sequences or is_transposed or not 0 < n_layers <= MAX_LAYERS:
        raise StateError("no recurrent part")
    tensors: list[Tensor] = []
    for _ in range(2 * n_layers):
        tensors.append(_find_tensor(cursor, 1, is_transposed=False))
        yield RecurrentShape(n_layers, tuple(tensors)), cursor.at


def _find_tensor(cursor: Cursor, n_cells: int, *, is_transposed: bool) -> Tensor:
    tensor = take_tensor(cursor, is_transposed=is_transposed)
    if not (0 <= tensor.type_id < MAX_TYPE and tensor.row_bytes <= MAX_ROW_BYTES):
        raise StateError("no tensor")
    cursor.skip(n_cells * tensor.row_bytes)
    return tensor
