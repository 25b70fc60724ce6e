"""Room for the tensors of a graph, handed out as llama.cpp's graph allocator does.

`ggml_dyn_tallocr` and `ggml_gallocr` of `ggml/src/ggml-alloc.c` (llama.cpp 0c1e57098): a tensor
takes the room of a source that nobody else needs, the smallest hole that it fits, or room at the
end; freed neighbours become one hole.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from engine.memory.scheduler import Schedule
from engine.memory.tensor_graph import Kind, Size, Tensor

Program = tuple[tuple[int, Size | None], ...]
"""What happens in a buffer: a tensor by its number takes room of a size, or leaves it (None)."""


class Block(NamedTuple):
    """Room that a tensor holds."""

    offset: int
    nbytes: int


class Allocator:
    """One buffer of a backend; `peak` is how large it has to be."""

    def __init__(self, alignment: int) -> None:
        self.peak = 0
        self._alignment = alignment
        self._end = 0
        self._holes: list[Block] = []

    def take(self, nbytes: int) -> Block:
        """Room for a tensor: the last of the smallest holes that it fits, or the end."""
        nbytes = -(-nbytes // self._alignment) * self._alignment
        best = -1
        for index, hole in enumerate(self._holes):
            if hole.nbytes >= nbytes and (best < 0 or hole.nbytes <= self._holes[best].nbytes):
                best = index
        if best < 0:
            block = Block(self._end, nbytes)
            self._end += nbytes
            self.peak = max(self.peak, self._end)
            return block
        offset, size = self._holes[best]
        if size == nbytes:
            del self._holes[best]
        else:
            self._holes[best] = Block(offset + nbytes, size - nbytes)
        return Block(offset, nbytes)

    def free(self, block: Block) -> None:
        """Make a hole of a block, or shorten the end by it."""
        offset, nbytes = block
        if not nbytes:
            return
        holes = self._holes
        index = 0
        while index < len(holes) and holes[index].offset < offset:
            index += 1
        if index < len(holes) and holes[index].offset == offset + nbytes:
            nbytes += holes.pop(index).nbytes
        if index and holes[index - 1].offset + holes[index - 1].nbytes == offset:
            index -= 1
            before = holes.pop(index)
            offset, nbytes = before.offset, before.nbytes + nbytes
        if offset + nbytes == self._end:
            self._end = offset
        else:
            holes.insert(index, Block(offset, nbytes))


def buffer_bytes(program: Program, sizes: Mapping[Size, int], alignment: int) -> int:
    """How large a buffer has to be for what happens in it."""
    room = Allocator(alignment)
    blocks: dict[int, Block] = {}
    for number, size in program:
        if size is None:
            room.free(blocks.pop(number))
        else:
            blocks[number] = room.take(sizes[size])
    return room.peak


def programs_of(plan: Schedule, n_devices: int) -> list[Program]:
    """What happens in the buffer of each device while a graph is laid out."""
    rooms = _Rooms(plan.steps, n_devices - 1)
    for tensor in plan.leading:
        rooms.take(tensor)
    for step in plan.steps:
        rooms.lay_out(step)
    return [tuple(rooms.programs[device]) for device in range(n_devices)]


class _Rooms:
    """Who needs each tensor still, and whose room it has."""

    def __init__(self, steps: list[Tensor], cpu: int) -> None:
        self.programs: dict[int, list[tuple[int, Size | None]]] = defaultdict(list)
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
        self.programs[device].append((self._n_taken, size))
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
            self.programs[device].append((number, None))
