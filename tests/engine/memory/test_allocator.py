"""Room in a buffer, as llama.cpp's graph allocator gives it away."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.memory.allocator import Allocator, Block


def test_a_tensor_takes_the_smallest_hole_that_it_fits() -> None:
    room = Allocator(32)
    large, _, small, _ = (room.take(nbytes) for nbytes in (320, 32, 96, 32))
    room.free(large, small)
    assert room.take(64) == Block(small.offset, 64)
    assert room.take(64) == Block(large.offset, 64), "32 bytes of the small one are left"


def test_of_holes_of_one_size_the_last_is_taken() -> None:
    room = Allocator(32)
    first, _, second, _ = (room.take(64) for _ in range(4))
    room.free(first, second)
    assert room.take(64) == second


def test_neighbours_become_one_hole_and_the_end_moves_back() -> None:
    room = Allocator(32)
    blocks = [room.take(64) for _ in range(4)]
    room.free(blocks[0], blocks[2], blocks[1])
    assert room.state == (256, (Block(0, 192),))
    room.free(blocks[3])
    assert room.state == (0, ())
    assert room.peak == 256


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    room = Allocator(128)
    assert room.take(1) == Block(0, 128)
    assert room.replace(room.take(129), 64) == Block(384, 128)
    assert room.state == (512, (Block(128, 256),))


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 9)), max_size=40))
def test_what_is_taken_never_overlaps_and_all_comes_back(steps: list[tuple[int, int]]) -> None:
    room, held = Allocator(32), list[Block]()
    for nbytes, index in steps:
        held.append(room.take(nbytes))
        if index < len(held) - 1:
            room.free(held.pop(index))
        ordered = sorted(held)
        assert all(a.offset + a.nbytes <= b.offset for a, b in pairwise(ordered))
        assert max(block.offset + block.nbytes for block in held) <= room.peak
    room.free(*held)
    assert room.state == (0, ())
