"""Room in a buffer, as llama.cpp's graph allocator gives it away."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.memory.allocator import LEAVES, Block, laid_out, programs_of
from engine.memory.scheduler import Kind, Schedule, Size, Tensor

SIZES: dict[Size, int] = {(0, "small"): 32, (0, "large"): 320}


def tensor(*sources: Tensor, name: str = "large", replaces: tuple[Tensor, ...] = ()) -> Tensor:
    return Tensor((0, name), sources, device=0, replaces=replaces)


def room_of(*steps: Tensor) -> int:
    (program,) = programs_of(Schedule([], list(steps)), 1)
    return program.buffer_bytes([SIZES[size] for size in program.sizes], 32)


def held(*steps: tuple[str, int]) -> dict[str, Block]:
    """Room that tensors hold: a name takes bytes, or leaves its room by 0."""
    names = list(dict.fromkeys(name for name, _ in steps))
    sizes = sorted({nbytes for _, nbytes in steps if nbytes})
    numbered = [
        (names.index(name), sizes.index(nbytes) if nbytes else LEAVES) for name, nbytes in steps
    ]
    return {names[number]: block for number, block in laid_out(numbered, sizes)[1].items()}


def test_a_tensor_takes_the_smallest_hole_that_it_fits() -> None:
    before = (("large", 320), ("a", 32), ("small", 96), ("b", 32), ("large", 0), ("small", 0))
    found = held(*before, ("first", 64), ("second", 64))
    assert found["first"] == (352, 64), "where the small one was"
    assert found["second"] == (0, 64), "32 bytes of the small one are left"


def test_of_holes_of_one_size_the_last_is_taken() -> None:
    before = (("a", 64), ("b", 64), ("c", 64), ("d", 64), ("a", 0), ("c", 0))
    assert held(*before, ("new", 64))["new"] == (128, 64)


def test_neighbours_become_one_hole_and_the_end_moves_back() -> None:
    before = (("a", 64), ("b", 64), ("c", 64), ("d", 64), ("a", 0), ("c", 0), ("b", 0))
    assert held(*before, ("new", 192))["new"] == (0, 192)
    assert held(*before, ("new", 192), ("d", 0), ("last", 64))["last"] == (192, 64)


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    (program,) = programs_of(Schedule([], [tensor()]), 1)
    assert program.buffer_bytes([1], 128) == 128
    assert program.buffer_bytes([129], 128) == 256


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=40))
def test_what_is_taken_never_overlaps_and_all_comes_back(steps: list[tuple[int, int]]) -> None:
    sizes, taken = range(0, 1300, 32), list[int]()
    program = list[tuple[int, int]]()
    for number, (index, left) in enumerate(steps):
        program.append((number, index))
        taken.append(number)
        if left < len(taken) - 1:
            program.append((taken.pop(left), LEAVES))
        peak, blocks = laid_out(program, sizes)
        ordered = sorted(blocks.values())
        assert all(a[0] + a[1] <= b[0] for a, b in pairwise(ordered))
        assert max(start + nbytes for start, nbytes in ordered) <= peak
    program += [(number, LEAVES) for number in taken]
    assert laid_out([*program, (99, 1)], sizes)[1] == {99: (0, 32)}


def test_a_tensor_leaves_when_the_last_that_needs_it_is_made() -> None:
    first = tensor()
    second = tensor(first)
    third = tensor(second)
    assert room_of(first, second, third) == 640
    assert room_of(first, second, tensor(first, second)) == 960


def test_a_source_that_nobody_else_needs_is_replaced() -> None:
    first = tensor()
    assert room_of(first, tensor(first, replaces=(first,))) == 320
    first = tensor()
    second = tensor(first, replaces=(first,))
    assert room_of(first, second, tensor(first, second)) == 960, "the first is needed again"


def test_a_view_keeps_what_it_looks_at() -> None:
    first = tensor()
    view = Tensor((0, "large"), (first,), Kind.VIEW, device=0)
    between = tensor()
    assert room_of(first, view, between, tensor(view, between)) == 960
    kept = tensor()
    kept.is_kept = True
    assert room_of(kept, tensor(kept, replaces=(kept,)), tensor()) == 960
