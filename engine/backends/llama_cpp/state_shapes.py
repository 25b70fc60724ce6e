"""Finding out what the states of a context look like, from one that it has just written."""

from collections.abc import Iterator

from engine.backends.llama_cpp.state_layout import (
    COUNT,
    RECURRENT_CELL,
    TENSORS,
    AttentionShape,
    Cursor,
    RecurrentShape,
    State,
    StateShape,
    Tensor,
    check_magic,
    take_tensor,
)
from engine.errors import StateError

MAX_STREAMS = 256
MAX_LAYERS = 1024
MAX_TYPE = 64
MAX_ROW_BYTES = 1 << 24
MAX_PARTS = 4


def find_shape(state: State) -> StateShape | None:
    """Give the shape of a state that a context has just written, or None where it is not known."""
    try:
        cursor = check_magic(state)
        return next(_shapes(state, cursor.at, MAX_PARTS), None)
    except StateError:
        return None


def _shapes(state: State, at: int, n_left: int) -> Iterator[StateShape]:
    """Give every way to read the rest of a state as parts."""
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
