"""Restoring a sliding window into the very cells that it was saved from.

llama.cpp saves the cells of the window only, and restores them from cell 0 on; the sequence then
reaches the end of its ring of cells at another token than without the break. Sums over cells are
taken in the order of the cells, so logits would differ in their last bits from there on. Here the
cells in between are filled with zeros under positions that every later token masks, so that all
cells lie where plain decoding puts them: token p in cell p modulo the size of the ring.
"""

from dataclasses import dataclass

import numpy as np

from engine.backends.llama_cpp.state_layout import COUNT, AttentionShape, Part, State
from engine.backends.llama_cpp.state_writing import Bytes, Cells, attention_nbytes, put_attention


@dataclass(frozen=True, slots=True)
class Ring:
    """The cells of a sliding window's cache, used round and round by one sequence."""

    n_cells: int

    def is_broken(self, n_held: int, length: int) -> bool:
        """Whether cutting back from `n_held` to `length` tokens leaves the order of plain decoding.

        llama.cpp goes on at the first free cell of those that were cut off: behind the ring's end,
        that is cell 0.
        """
        return length < n_held and (n_held - 1) // self.n_cells != length // self.n_cells

    def unroll(self, state: State, part: Part, shape: AttentionShape, n_tokens: int) -> memoryview:
        """Give a state whose window, of `n_tokens` tokens so far, lies in its places.

        From one turn of the ring on, the cell of the next token holds position `n_tokens`: removing
        it makes llama.cpp go on there.
        """
        n_cells = min(n_tokens, self.n_cells)
        nbytes = attention_nbytes(shape, n_cells)
        rest = len(state) - part.end
        whole = np.zeros(part.start + nbytes + rest, np.uint8)
        data = np.frombuffer(state, np.uint8)
        whole[: part.start] = data[: part.start]
        window = Cells(state, part, slice(None), len(part.records))
        places = (part.positions % self.n_cells).astype(np.intp)
        end = put_attention(whole, part.start, shape, n_cells, [(places, window)])
        whole[end:] = data[part.end :]
        self._put_positions(whole[part.start + 2 * COUNT.size :], shape, n_cells, n_tokens)
        return whole.data.toreadonly()

    def has_gap(self, n_tokens: int) -> bool:
        """Whether a state of `unroll` holds a cell at position `n_tokens`, to be removed."""
        return n_tokens >= self.n_cells

    def _put_positions(
        self, data: Bytes, shape: AttentionShape, n_cells: int, n_tokens: int
    ) -> None:
        records = data[: 4 * n_cells * shape.record_ints].view("<i4").reshape(n_cells, -1)
        last = n_tokens - 1
        records[:, 0] = last - (last - np.arange(n_cells)) % self.n_cells
        records[:, 1] = 1
        if self.has_gap(n_tokens):
            records[n_tokens % self.n_cells, 0] = n_tokens
