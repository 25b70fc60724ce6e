"""Selecting and joining cells of states that are made here, byte by byte."""

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.llama_cpp.state_edit import cells_from, join
from engine.backends.llama_cpp.state_format import AttentionLayout, find_shape
from engine.errors import StateError

MAGIC = struct.pack("<Ii", 0xAF143CD8, 0)
F16, Q8_0 = 1, 8


def made(
    positions: list[int], *, is_transposed: bool = False, n_streams: int = 1, n_layers: int = 2
) -> bytes:
    """A state whose every row encodes its position, tensor and place in the row."""
    order = np.array(positions, np.int32)
    state = MAGIC + struct.pack("<II", n_streams, len(order))
    state += np.stack([order, np.ones_like(order), np.zeros_like(order)], 1).tobytes()
    state += struct.pack("<II", int(is_transposed), n_layers)
    for layer in range(n_layers):
        state += struct.pack("<iQ", Q8_0, 34) + rows(order, layer, 17).tobytes()
    for layer in range(n_layers):
        values = rows(order, 100 + layer, 6)
        if is_transposed:
            state += struct.pack("<iII", F16, 2, 6) + values.T.tobytes()
        else:
            state += struct.pack("<iQ", F16, 12) + values.tobytes()
    return state + struct.pack("<I", 0) * (n_streams - 1)


def rows(positions: np.ndarray, tensor: int, n: int) -> np.ndarray:
    """16-bit numbers `[n_cells, n]`."""
    return (positions[:, None] * 1000 + tensor * 10 + np.arange(n)).astype(np.uint16)


def shape_of(state: bytes) -> AttentionLayout:
    found = find_shape(state)
    assert found is not None
    (shape,) = found
    assert isinstance(shape, AttentionLayout)
    return shape


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([1, 4]),
)
def test_consecutive_states_join_to_the_bytes_of_the_whole(
    lengths: list[int], is_transposed: bool, n_streams: int
) -> None:
    ends = np.cumsum([0, *lengths]).tolist()
    parts = [
        made(list(range(start, end)), is_transposed=is_transposed, n_streams=n_streams)
        for start, end in pairwise(ends)
    ]
    whole = made(list(range(ends[-1])), is_transposed=is_transposed, n_streams=n_streams)
    shape = shape_of(whole)
    pieces = [cells_from(part, shape, start) for part, start in zip(parts, ends, strict=False)]
    assert bytes(join(shape, pieces)) == whole
    assert bytes(join(shape, [cells_from(whole, shape, ends[-2])])) == parts[-1]


@given(st.permutations(range(12)), st.integers(0, 11), st.booleans())
def test_cells_in_any_order_are_written_in_the_order_of_their_tokens(
    positions: list[int], start: int, is_transposed: bool
) -> None:
    mixed = made(positions, is_transposed=is_transposed)
    shape = shape_of(mixed)
    end = bytes(join(shape, [cells_from(mixed, shape, start)]))
    assert end == made(list(range(start, 12)), is_transposed=is_transposed)


def test_tokens_twice_or_missing_are_refused() -> None:
    for positions in ([0, 1, 1, 3], [0, 1, 3, 5], [2, 2, 2, 2]):
        state = made(positions)
        with pytest.raises(StateError, match="missing or repeated"):
            cells_from(state, shape_of(state), min(positions))


def test_positions_that_the_state_lacks_are_refused() -> None:
    state = made([5, 6, 7, 8])
    for start in (0, 4, 9):
        with pytest.raises(StateError, match="contains tokens 5 to 9"):
            cells_from(state, shape_of(state), start)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_outside_the_numbers_of_tensors_is_never_taken_for_a_token(
    at: int, bit: int
) -> None:
    state = made(list(range(8)))
    shape = shape_of(state)
    at %= len(state)
    flipped = bytearray(state)
    flipped[at] ^= 1 << bit
    try:
        piece = cells_from(bytes(flipped), shape, 0)
    except StateError:
        return
    again = bytes(join(shape, [piece]))
    differ = np.flatnonzero(np.frombuffer(again, np.uint8) != np.frombuffer(state, np.uint8))
    assert differ.size == 0 or (differ.size == 1 and differ[0] >= len(MAGIC) + 8 + 8 * 12 + 8)
