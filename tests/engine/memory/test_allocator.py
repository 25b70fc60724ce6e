"""Room in a buffer, as llama.cpp's graph allocator gives it away."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.memory.allocator import Allocator, Block, buffer_bytes, programs_of
from engine.memory.scheduler import Schedule
from engine.memory.tensor_graph import Kind, Size, Tensor

SIZES: dict[Size, int] = {(0, "small"): 32, (0, "large"): 320}


def tensor(*sources: Tensor, name: str = "large", replaces: tuple[Tensor, ...] = ()) -> Tensor:
    return Tensor((0, name), sources, device=0, replaces=replaces)


def laid_out(*steps: Tensor) -> int:
    (program,) = programs_of(Schedule([], list(steps)), 1)
    return buffer_bytes(program, SIZES, 32)


def test_a_tensor_takes_the_smallest_hole_that_it_fits() -> None:
    room = Allocator(32)
    large, _, small, _ = (room.take(nbytes) for nbytes in (320, 32, 96, 32))
    room.free(large)
    room.free(small)
    assert room.take(64) == Block(small.offset, 64)
    assert room.take(64) == Block(large.offset, 64), "32 bytes of the small one are left"


def test_of_holes_of_one_size_the_last_is_taken() -> None:
    room = Allocator(32)
    first, _, second, _ = (room.take(64) for _ in range(4))
    room.free(first)
    room.free(second)
    assert room.take(64) == second


def test_neighbours_become_one_hole_and_the_end_moves_back() -> None:
    room = Allocator(32)
    blocks = [room.take(64) for _ in range(4)]
    for index in (0, 2, 1):
        room.free(blocks[index])
    assert room.take(192) == Block(0, 192)
    room.free(blocks[3])
    assert room.take(64) == Block(192, 64)
    assert room.peak == 256


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    room = Allocator(128)
    assert room.take(1) == Block(0, 128)
    assert room.take(129) == Block(128, 256)


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
    for block in held:
        room.free(block)
    assert room.take(1) == Block(0, 32)


def test_a_tensor_leaves_when_the_last_that_needs_it_is_made() -> None:
    first = tensor()
    second = tensor(first)
    third = tensor(second)
    assert laid_out(first, second, third) == 640
    assert laid_out(first, second, tensor(first, second)) == 960


def test_a_source_that_nobody_else_needs_is_replaced() -> None:
    first = tensor()
    assert laid_out(first, tensor(first, replaces=(first,))) == 320
    first = tensor()
    second = tensor(first, replaces=(first,))
    assert laid_out(first, second, tensor(first, second)) == 960, "the first is needed again"


def test_a_view_keeps_what_it_looks_at() -> None:
    first = tensor()
    view = Tensor((0, "large"), (first,), Kind.VIEW, device=0)
    between = tensor()
    assert laid_out(first, view, between, tensor(view, between)) == 960
    kept = tensor()
    kept.is_kept = True
    assert laid_out(kept, tensor(kept, replaces=(kept,)), tensor()) == 960
