"""The calls of llama.cpp that take states out of a context and put them in, on plain buffers.

With one pool of cells they also work on a stretch of a sequence: a second id takes part in its
cells for the moment, without a copy. llama.cpp accepts ids up to its limit of 256 there, however
many sequences the context was opened for, and says so by writing cells of no sequence.
"""

import ctypes

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.backends.llama_cpp.state_layout import (
    COUNT,
    HEADER,
    MAGIC,
    AttentionShape,
    State,
)
from engine.errors import StateError

SCRATCH = 255
"""The last id that llama.cpp has (LLAMA_MAX_SEQ - 1)."""


class NativeStates:
    """States of the sequences of one context."""

    def __init__(self, context: object) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)

    def read(self, sequence_id: int, *, spare_bytes: int = 0) -> NDArray[np.uint8]:
        """Give the state of a sequence, behind some spare bytes.

        Raises:
            StateError: llama.cpp gave none.
        """
        nbytes = llama_cpp.llama_state_seq_get_size(self._context, sequence_id)
        buffer = np.empty(spare_bytes + nbytes, np.uint8)
        n_written = llama_cpp.llama_state_seq_get_data(
            self._context, _pointer(buffer.ctypes.data + spare_bytes), nbytes, sequence_id
        )
        if not nbytes or n_written != nbytes:
            raise StateError(
                f"llama.cpp gave {n_written} bytes of a state of {nbytes}: the log has the reason"
            )
        return buffer

    def write(self, sequence_id: int, state: State) -> bool:
        """Replace what a sequence holds; False where llama.cpp refuses, which has the reason."""
        data = np.frombuffer(state, np.uint8)
        n_read: int = llama_cpp.llama_state_seq_set_data(
            self._context, _pointer(data.ctypes.data), len(data), sequence_id
        )
        return n_read == len(data)

    def read_end(
        self, sequence_id: int, start: int, n_tokens: int, shape: AttentionShape
    ) -> memoryview:
        """Give the state of the tokens from `start` on; needs one pool of cells.

        llama.cpp leaves out the id of each cell, for the scratch id is none of the context's: the
        records are written anew, and everything behind them is where it belongs.

        Raises:
            StateError: llama.cpp gave none.
        """
        n_cells = n_tokens - start
        llama_cpp.llama_memory_seq_cp(self._memory, sequence_id, SCRATCH, start, n_tokens)
        try:
            buffer = self.read(SCRATCH, spare_bytes=4 * n_cells)
        finally:
            self.remove(SCRATCH)
        fixed = HEADER.size + 2 * COUNT.size
        short = buffer[4 * n_cells + fixed :][: 4 * n_cells * (shape.record_ints - 1)]
        given = short.view("<i4").reshape(n_cells, -1).copy()
        buffer[:fixed] = buffer[4 * n_cells :][:fixed].copy()
        HEADER.pack_into(buffer.data, 0, MAGIC, 0)
        records = buffer[fixed:][: 4 * n_cells * shape.record_ints].view("<i4")
        records = records.reshape(n_cells, -1)
        records[:, :-1] = given
        records[:, 1] = 1
        records[:, -1] = 0
        return buffer.data.toreadonly()

    def append(self, sequence_id: int, state: State) -> bool:
        """Put a stretch behind what a sequence holds; needs one pool of cells."""
        is_taken = self.write(SCRATCH, state)
        if is_taken:
            llama_cpp.llama_memory_seq_cp(self._memory, SCRATCH, sequence_id, -1, -1)
        self.remove(SCRATCH)
        return is_taken

    def remove(self, sequence_id: int, start: int = -1, end: int = -1) -> None:
        """Drop the cells of positions `start` to `end`; all of them by default."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence_id, start, end)

    def n_held(self, sequence_id: int) -> int:
        """Give one more than the last position that is held."""
        last: int = llama_cpp.llama_memory_seq_pos_max(self._memory, sequence_id)
        return last + 1


def _pointer(address: int) -> object:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
