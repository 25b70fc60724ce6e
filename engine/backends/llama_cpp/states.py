"""Saving and restoring what a sequence holds; llama.cpp reads no state that was not checked."""

import ctypes
from collections.abc import Sequence
from typing import NoReturn

import llama_cpp
import numpy as np

from engine.backends.llama_cpp.state_layout import (
    AttentionShape,
    Integers,
    Part,
    RecurrentShape,
    State,
    StateShape,
    check_magic,
    read_parts,
)
from engine.backends.llama_cpp.state_shapes import find_shape
from engine.backends.llama_cpp.state_slices import first_position, join, stretch
from engine.backends.llama_cpp.state_window import Ring
from engine.errors import ContextFullError, StateError


class States:
    """The states of one context.

    llama.cpp ends the process, or accepts garbage, when it is given some states that it did not
    write itself; so the layout is learned from a state of this very context, and others must have
    the same.
    """

    def __init__(
        self, context: object, *, n_swa: int, ring: Ring | None, shares_cells: bool
    ) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._n_swa = n_swa
        self._shares_cells = shares_cells
        self.ring = ring
        self._shape: StateShape | None = None
        self.is_learned = False

    @property
    def sliced(self) -> AttentionShape | None:
        """The layout where states can be cut at any token: full attention and nothing else."""
        match self._shape:
            case (AttentionShape() as shape,) if not self._n_swa:
                return shape
        return None

    def learn(self, state: State) -> None:
        """Learn the layout from a state that this context has just given."""
        self._shape = find_shape(state)
        self.is_learned = True

    def read(self, sequence_id: int) -> memoryview:
        """Give the whole state of a sequence.

        Raises:
            StateError: llama.cpp gave none.
        """
        nbytes = llama_cpp.llama_state_seq_get_size(self._context, sequence_id)
        state = np.empty(nbytes, np.uint8)
        n_written = llama_cpp.llama_state_seq_get_data(
            self._context, _pointer(state.ctypes.data), nbytes, sequence_id
        )
        if not nbytes or n_written != nbytes:
            raise StateError(
                f"llama.cpp gave {n_written} bytes of a state of {nbytes}: the log has the reason"
            )
        return state.data.toreadonly()

    def write(self, sequence_id: int, states: Sequence[State], n_tokens: int) -> int:
        """Replace what a sequence holds by `n_tokens` from states that follow one another.

        Returns:
            The first token that all layers hold: not 0 behind a sliding window.

        Raises:
            StateError: the states are damaged, of another layout, or do not hold these tokens;
                what the sequence holds is unchanged unless llama.cpp itself refused.
            ContextFullError: other sequences hold the cells that all share.
        """
        state = self._whole(states, n_tokens)
        parts = self._checked(state, n_tokens)
        state = self._unrolled(state, parts, n_tokens)
        data = np.frombuffer(state, np.uint8)
        n_read = llama_cpp.llama_state_seq_set_data(
            self._context, _pointer(data.ctypes.data), len(data), sequence_id
        )
        if n_read != len(data):
            self._refuse(n_tokens, len(data))
        if self.ring is not None and self.ring.has_gap(n_tokens):
            llama_cpp.llama_memory_seq_rm(self._memory, sequence_id, n_tokens, n_tokens + 1)
        last = llama_cpp.llama_memory_seq_pos_max(self._memory, sequence_id)
        if last != n_tokens - 1:
            raise StateError(
                f"a state of {n_tokens} tokens was restored and llama.cpp holds {last + 1}"
            )
        return max(
            (int(part.positions.min()) for part in parts if len(part.records) > 1), default=0
        )

    def _refuse(self, n_tokens: int, nbytes: int) -> NoReturn:
        if self._shares_cells:
            raise ContextFullError(
                f"a state of {n_tokens} tokens was asked for and other sequences hold the cells: "
                "close one, or raise the context"
            )
        raise StateError(
            f"llama.cpp refused a state of {n_tokens} tokens ({nbytes} bytes): the log has the "
            "reason"
        )

    def cut(self, state: State, start: int, end: int | None = None) -> memoryview:
        """Give the state of the tokens from `start` to `end` of the line.

        Raises:
            StateError: it is damaged, does not hold them, or cannot be cut.
        """
        shape = self._needed()
        return join(shape, (stretch(state, shape, start, end),))

    def first_position(self, state: State) -> int:
        """Give where in the line a state begins.

        Raises:
            StateError: it is damaged, or of a kind that cannot be cut.
        """
        return first_position(state, self._needed())

    def _needed(self) -> AttentionShape:
        shape = self.sliced
        if shape is None:
            raise StateError(
                "states of this model cannot be cut: it has a sliding window, a recurrent state "
                "or an unknown layout"
            )
        return shape

    def _whole(self, states: Sequence[State], n_tokens: int) -> State:
        if len(states) == 1:
            return states[0]
        shape = self._needed()
        stretches = []
        at = 0
        for state in states:
            piece = stretch(state, shape, at)
            stretches.append(piece)
            at += piece.n_cells
        if at != n_tokens:
            raise StateError(f"the saved states hold {at} tokens where {n_tokens} were expected")
        return join(shape, stretches)

    def _checked(self, state: State, n_tokens: int) -> tuple[Part, ...]:
        if self._shape is None:
            check_magic(state)
            return ()
        parts = read_parts(state, self._shape)
        n_swa = 0 if len(self._attention()) > 1 else self._n_swa
        for shape, part in zip(self._shape, parts, strict=True):
            if isinstance(shape, RecurrentShape):
                is_right = int(part.positions[0]) == n_tokens - 1
            else:
                is_right = _follow(part.positions, n_tokens, n_swa)
                n_swa = self._n_swa
            if not is_right:
                raise StateError(f"the saved state does not hold the {n_tokens} tokens of its line")
        return parts

    def _first_held(self, parts: Sequence[Part]) -> int:
        pairs = zip(self._shape or (), parts, strict=False)
        held = [part for shape, part in pairs if isinstance(shape, AttentionShape)]
        return max((int(part.positions.min()) for part in held), default=0)

    def _attention(self) -> list[AttentionShape]:
        return [part for part in self._shape or () if isinstance(part, AttentionShape)]

    def _unrolled(self, state: State, parts: Sequence[Part], n_tokens: int) -> State:
        if self.ring is None or self._shape is None:
            return state
        for shape, part in zip(reversed(self._shape), reversed(parts), strict=True):
            if isinstance(shape, AttentionShape):
                return self.ring.unroll(state, part, shape, n_tokens)
        return state


def _follow(positions: Integers, n_tokens: int, n_swa: int) -> bool:
    """Whether positions are those of a line's cells, or of its sliding window, each once."""
    lowest = n_tokens - len(positions)
    if lowest and not (n_swa and _opens_window(lowest, n_tokens, n_swa)):
        return False
    expected = np.arange(lowest, n_tokens, dtype=np.int32)
    return np.array_equal(positions, expected) or np.array_equal(np.sort(positions), expected)


def _opens_window(lowest: int, n_tokens: int, n_swa: int) -> bool:
    """Whether the next token needs none before `lowest`; chunked windows begin at multiples."""
    chunk = (n_tokens - 1) // n_swa * n_swa
    return 0 < lowest <= n_tokens - n_swa or lowest == chunk


def _pointer(address: int) -> object:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
