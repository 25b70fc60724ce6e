"""Room for the tensors of a graph, handed out as llama.cpp's graph allocator does.

`ggml_dyn_tallocr` of `ggml/src/ggml-alloc.c` (llama.cpp 0c1e57098): a tensor takes the smallest
hole that it fits, or else room at the end; freed neighbours become one hole.
"""

from typing import NamedTuple


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

    def free(self, *blocks: Block) -> None:
        """Make holes of blocks, one after the other, or shorten the end by them."""
        for block in blocks:
            self._free(block)

    def replace(self, block: Block, nbytes: int) -> Block:
        """Room for a tensor that is made of another, which is freed then."""
        taken = self.take(nbytes)
        self._free(block)
        return taken

    @property
    def state(self) -> tuple[int, tuple[Block, ...]]:
        """What is free: where the end begins, and the holes before it."""
        return self._end, tuple(self._holes)

    def _free(self, block: Block) -> None:
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
