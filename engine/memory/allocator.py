"""Room for the tensors of a graph, handed out as llama.cpp's graph allocator does.

`ggml_dyn_tallocr` and `ggml_gallocr` of `ggml/src/ggml-alloc.c` (llama.cpp 0c1e57098): a tensor
takes the room of a source that nobody else needs, the smallest hole that it fits, or room at the
end; freed neighbours become one hole.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from engine.memory.scheduler import Kind, Schedule, Size, Tensor

LEAVES = -1
"""In the place of a size: the tensor leaves its room."""
Block = tuple[int, int]
"""Where room begins, and its bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What happens in a buffer."""

    steps: tuple[tuple[int, int], ...]
    """A tensor by its number takes room of a size by its number, or leaves it."""
    sizes: tuple[Size, ...]

    def buffer_bytes(self, sizes: Iterable[int], alignment: int) -> int:
        """How large the buffer has to be, given the bytes of its sizes in their order."""
        return _peak(self, tuple(-(-nbytes // alignment) * alignment for nbytes in sizes))


@lru_cache(maxsize=4096)
def _peak(program: Program, sizes: tuple[int, ...]) -> int:
    return laid_out(program.steps, sizes)[0]


def laid_out(
    steps: Iterable[tuple[int, int]], sizes: Sequence[int]
) -> tuple[int, dict[int, Block]]:
    """The bytes of a buffer behind steps, and the room that tensors still hold.

    A tensor takes the last of the smallest holes that it fits, or the end. It is one function as it
    runs some hundred times for each estimate.
    """
    peak = end = 0
    starts: list[int] = []
    lengths: list[int] = []
    """Holes in their order."""
    held: dict[int, Block] = {}
    for number, index in steps:
        if index != LEAVES:
            nbytes = sizes[index]
            best, best_nbytes = -1, peak + 1
            for hole, length in enumerate(lengths):
                if nbytes <= length <= best_nbytes:
                    best, best_nbytes = hole, length
            if best < 0 or not nbytes:
                held[number] = end, nbytes
                end += nbytes
                peak = max(peak, end)
                continue
            held[number] = starts[best], nbytes
            if best_nbytes == nbytes:
                del starts[best], lengths[best]
            else:
                starts[best] += nbytes
                lengths[best] -= nbytes
            continue
        block = held.pop(number)
        end = _end_without(block, starts, lengths, end)
    return peak, held


def _end_without(block: Block, starts: list[int], lengths: list[int], end: int) -> int:
    """Make a hole of a block, or of its neighbours and it; at the end there is none."""
    start, nbytes = block
    if not nbytes:
        return end
    hole = bisect_left(starts, start)
    if hole < len(starts) and starts[hole] == start + nbytes:
        nbytes += lengths[hole]
        del starts[hole], lengths[hole]
    if hole and starts[hole - 1] + lengths[hole - 1] == start:
        hole -= 1
        start, nbytes = starts[hole], nbytes + lengths[hole]
        del starts[hole], lengths[hole]
    if start + nbytes == end:
        return start
    starts.insert(hole, start)
    lengths.insert(hole, nbytes)
    return end


def programs_of(plan: Schedule, n_devices: int) -> list[Program]:
    """What happens in the buffer of each device while a graph is laid out."""
    rooms = _Rooms(plan.steps, n_devices - 1)
    for tensor in plan.leading:
        rooms.take(tensor)
    for step in plan.steps:
        rooms.lay_out(step)
    return [rooms.program(device) for device in range(n_devices)]


class _Rooms:
    """Who needs each tensor still, and whose room it has."""

    def __init__(self, steps: list[Tensor], cpu: int) -> None:
        self._steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._sizes: dict[int, dict[Size, int]] = defaultdict(dict)
        self._cpu = cpu
        self._numbers: dict[Tensor, tuple[int, int]] = {}
        """The device and the number of each tensor that has room."""
        self._n_taken = 0
        self._n_users: dict[Tensor, int] = defaultdict(int)
        self._n_views: dict[Tensor, int] = defaultdict(int)
        for step in steps:
            if step.kind is Kind.VIEW:
                self._n_views[step.sources[0]] += 1
            for source in step.sources:
                self._n_users[source] += 1

    def program(self, device: int) -> Program:
        return Program(tuple(self._steps[device]), tuple(self._sizes[device]))

    def lay_out(self, step: Tensor) -> None:
        if step.size is not None and step.kind is Kind.COMPUTED and step not in self._numbers:
            for source in step.replaces:
                is_last = self._n_users[source] == 1 and not self._n_views[source]
                if is_last and source in self._numbers and not source.is_kept:
                    self._numbers[step] = self._numbers.pop(source)
                    break
            else:
                self.take(step)
        for source in step.sources:
            self._n_users[source] -= 1
            self._release(source)

    def take(self, tensor: Tensor) -> None:
        device = self._cpu if tensor.device is None else tensor.device
        is_special = tensor.gpu_size is not None and device != self._cpu
        size = tensor.gpu_size if is_special else tensor.size
        assert size is not None
        sizes = self._sizes[device]
        self._steps[device].append((self._n_taken, sizes.setdefault(size, len(sizes))))
        self._numbers[tensor] = device, self._n_taken
        self._n_taken += 1

    def _release(self, tensor: Tensor) -> None:
        if self._n_users[tensor] or self._n_views[tensor]:
            return
        if tensor.kind is Kind.VIEW:
            base = tensor.sources[0]
            self._n_views[base] -= 1
            self._release(base)
        elif tensor in self._numbers and not tensor.is_kept:
            device, number = self._numbers.pop(tensor)
            self._steps[device].append((number, LEAVES))
