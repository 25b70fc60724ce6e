"""Save and restore states of sequences; llama.cpp only reads states that were checked.

With one sequence per context, a part of it can be saved and restored too: a second id temporarily
shares its cells without a copy. llama.cpp accepts ids up to its limit of 256 there, and writes the
cells without a sequence id.
"""

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.backends.llama_cpp.state_edit import Cells, cells_from, join
from engine.backends.llama_cpp.state_format import (
    COUNT,
    HEADER,
    MAGIC,
    AttentionLayout,
    Integers,
    RecurrentLayout,
    State,
    StateLayout,
    check_magic,
    find_shape,
    read_parts,
)
from engine.errors import StateError

SCRATCH = 255
"""The largest sequence id of llama.cpp (LLAMA_MAX_SEQ - 1)."""


class States:
    """The states of one context.

    llama.cpp may end the process or accept garbage for a foreign state. So the layout is learned
    from a state of this context, and other states must have the same layout.
    """

    def __init__(self, context: object, *, n_swa: int) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._n_swa = n_swa
        self._shape: StateLayout | None = None
        self.is_learned = False

    @property
    def slice_layout(self) -> AttentionLayout | None:
        """The layout if states can be split at any token, which needs full attention only."""
        match self._shape:
            case (AttentionLayout() as shape,) if not self._n_swa:
                return shape
        return None

    def learn(self, state: State) -> None:
        """Learn the layout from a state of this context."""
        self._shape = find_shape(state)
        self.is_learned = True

    def read(self, sequence_id: int) -> memoryview:
        """Save the whole state of a sequence.

        Raises:
            StateError: llama.cpp returned none.
        """
        return self._read_native(sequence_id).data.toreadonly()

    def read_end(self, sequence_id: int, start: int) -> State:
        """Save the state of the tokens from `start` on.

        With one pool of cells, earlier cells are not copied.

        Raises:
            StateError: states of this model cannot be split, or llama.cpp returned none.
        """
        shape = self._needed()
        if shape.n_streams > 1:
            return join(shape, (cells_from(self.read(sequence_id), shape, start),))
        state = self._read_native_end(sequence_id, start, shape)
        cells = cells_from(state, shape, start)
        return state if isinstance(cells.index, slice) else join(shape, (cells,))

    def write(self, sequence_id: int, states: Sequence[State], positions: Integers) -> None:
        """Replace the content of a sequence by consecutive states of tokens at `positions`.

        Raises:
            StateError: the states are damaged, of another layout, or lack these tokens; the
                sequence is unchanged unless llama.cpp itself refused.
        """
        n_tokens, expected = len(positions), int(positions[-1])
        if len(states) == 1:
            self._check(states[0], positions)
            is_accepted = self._write_native(sequence_id, states[0])
        else:
            is_accepted = self._write_segments(sequence_id, states, n_tokens)
        if not is_accepted:
            raise StateError(
                f"llama.cpp refused to restore a saved state of {n_tokens} tokens: see the log "
                "for the reason"
            )
        last = llama_cpp.llama_memory_seq_pos_max(self._memory, sequence_id)
        if last != expected:
            raise StateError(
                f"restoring the saved state of {n_tokens} tokens failed: it should end at "
                f"position {expected}, but in llama.cpp it ends at {last}"
            )

    def _write_segments(self, sequence_id: int, states: Sequence[State], n_tokens: int) -> bool:
        shape = self._needed()
        cells: list[Cells] = []
        at = 0
        for state in states:
            cells.append(cells_from(state, shape, at))
            at += len(cells[-1].records)
        if at != n_tokens:
            raise StateError(f"the saved states contain {at} tokens, but {n_tokens} were expected")
        if shape.n_streams > 1:
            return self._write_native(sequence_id, join(shape, cells))
        self._remove(sequence_id)
        return all(self._append_native(sequence_id, state) for state in states)

    def _needed(self) -> AttentionLayout:
        shape = self.slice_layout
        if shape is None:
            raise StateError(
                "states of this model cannot be saved in parts: the model has a sliding "
                "window, a recurrent state or an unknown layout"
            )
        return shape

    def _check(self, state: State, positions: Integers) -> None:
        if self._shape is None:
            check_magic(state)
            return
        parts = read_parts(state, self._shape)
        n_attention = sum(isinstance(part.shape, AttentionLayout) for part in parts)
        n_swa = 0 if n_attention > 1 else self._n_swa
        for part in parts:
            if isinstance(part.shape, RecurrentLayout):
                is_right = part.positions[0] == positions[-1]
            else:
                is_right = _follow(part.positions, positions, n_swa)
                n_swa = self._n_swa
            if not is_right:
                raise StateError(
                    f"the saved state is damaged: it does not contain the {len(positions)} "
                    "tokens of its sequence"
                )

    def _read_native(self, sequence_id: int) -> NDArray[np.uint8]:
        nbytes = llama_cpp.llama_state_seq_get_size(self._context, sequence_id)
        buffer = np.empty(nbytes, np.uint8)
        n_written = llama_cpp.llama_state_seq_get_data(
            self._context, _pointer(buffer), nbytes, sequence_id
        )
        if not nbytes or n_written != nbytes:
            raise StateError(
                f"llama.cpp returned {n_written} of {nbytes} bytes of the state: see the log "
                "for the reason"
            )
        return buffer

    def _write_native(self, sequence_id: int, state: State) -> bool:
        """Replace the content of a sequence; false if llama.cpp refuses and logs the reason."""
        data = np.frombuffer(state, np.uint8)
        n_read: int = llama_cpp.llama_state_seq_set_data(
            self._context, _pointer(data), len(data), sequence_id
        )
        return n_read == len(data)

    def _read_native_end(self, sequence_id: int, start: int, shape: AttentionLayout) -> bytes:
        """The state of the tokens from `start` on; needs one pool of cells.

        llama.cpp omits the sequence id of each cell, because the scratch id is not one of the
        context: the records are rewritten with ids.
        """
        llama_cpp.llama_memory_seq_cp(self._memory, sequence_id, SCRATCH, start, -1)
        try:
            state = self._read_native(SCRATCH)
        finally:
            self._remove(SCRATCH)
        counts = state[HEADER.size :][: 2 * COUNT.size]
        n_cells = int(counts.view("<u4")[1])
        records = np.zeros((n_cells, shape.record_ints), "<i4")
        at = HEADER.size + counts.size
        end = at + 4 * n_cells * (shape.record_ints - 1)
        records[:, :-1] = state[at:end].view("<i4").reshape(n_cells, -1)
        records[:, 1] = 1
        return b"".join((HEADER.pack(MAGIC, 0), counts.data, records.data, state[end:].data))

    def _append_native(self, sequence_id: int, state: State) -> bool:
        """Append a segment to a sequence; needs one pool of cells."""
        is_accepted = self._write_native(SCRATCH, state)
        if is_accepted:
            llama_cpp.llama_memory_seq_cp(self._memory, SCRATCH, sequence_id, -1, -1)
        self._remove(SCRATCH)
        return is_accepted

    def _remove(self, sequence_id: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, sequence_id, -1, -1)


def _pointer(data: NDArray[np.uint8]) -> object:
    return ctypes.cast(data.ctypes.data, ctypes.POINTER(ctypes.c_uint8))


def _follow(found: Integers, positions: Integers, n_swa: int) -> bool:
    """Whether the positions of cells are those of a sequence or its sliding window, each once."""
    n_tokens = len(positions)
    lowest = n_tokens - len(found)
    if lowest < 0:
        return False
    if lowest and not (n_swa and _opens_window(lowest, n_tokens, n_swa)):
        return False
    expected = positions[lowest:]
    return np.array_equal(found, expected) or np.array_equal(np.sort(found), expected)


def _opens_window(lowest: int, n_tokens: int, n_swa: int) -> bool:
    """Whether the next token needs no cell before `lowest`; chunked windows start at multiples."""
    chunk = (n_tokens - 1) // n_swa * n_swa
    return 0 < lowest <= n_tokens + 1 - n_swa or lowest == chunk
