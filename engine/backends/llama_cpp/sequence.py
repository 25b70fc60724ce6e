"""A token sequence in a llama.cpp context."""

from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np

from engine.backends.base import Sequence, Step, check_cells
from engine.backends.llama_cpp.batch import TokenBatch
from engine.backends.llama_cpp.state_format import Integers, State
from engine.errors import CropUnsupportedError, EngineError, StateError
from engine.images import end_of_images, image_start_at

if TYPE_CHECKING:
    from engine.backends.llama_cpp.backend import LlamaCppBackend


class LlamaCppSequence(Sequence):
    """Invariant: llama.cpp's cache has exactly `tokens` for this id, at positions 0, 1, ….

    With M-RoPE, tokens of an image share a position (`Projector.positions`). A sliding window drops
    early tokens; `can_crop` checks for that.
    """

    _backend: "LlamaCppBackend"

    def __init__(self, backend: "LlamaCppBackend", sequence_id: int) -> None:
        super().__init__(backend)
        self.id = sequence_id
        self._image_end = 0
        """Number of tokens up to the end of the last image."""
        self._position_gap = 0
        """Number of tokens up to there minus their number of positions (M-RoPE)."""

    def can_crop(self, length: int) -> bool:
        held = len(self._tokens)
        if length in (0, held):
            return True
        if length > held or self._backend.is_recurrent:
            return False
        is_within_image = image_start_at(self._tokens, length) < length < self._image_end
        return not is_within_image and self._window_is_whole(length)

    def crop(self, length: int) -> None:
        if length == len(self._tokens):
            return
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"the cache of {len(self._tokens)} tokens cannot be cropped to {length}: "
                f"{self._why_not(length)}; clear the cache and prefill the whole prompt again"
            )
        if not length:
            self._forget()
            return
        position = self._position(length)
        if not llama_cpp.llama_memory_seq_rm(self._backend.memory, self.id, position, -1):
            raise CropUnsupportedError(
                f"llama.cpp could not crop the cache from {len(self._tokens)} to {length} "
                "tokens: clear the cache and prefill the whole prompt again"
            )
        del self._tokens[length:]
        if length < self._image_end:
            self._image_end, self._position_gap = end_of_images(self._tokens), length - position

    def learn_states(self) -> None:
        """Learn the layout of this context's states; an empty sequence decodes a token for it."""
        states = self._backend.states
        if states.is_learned:
            return
        is_empty = not self._tokens
        if is_empty:
            self.decode(0)
        states.learn(states.read(self.id))
        if is_empty:
            self.crop(0)

    def save(self, start: int = 0) -> bytes | memoryview:
        if not 0 <= start < len(self._tokens):
            raise StateError(
                f"no state begins at token {start}: the cache has only {len(self._tokens)} tokens"
            )
        self.learn_states()
        states = self._backend.states
        if not start:
            return states.read(self.id)
        if not self._backend.can_slice:
            raise StateError("states of this model cannot be saved in parts")
        return states.read_end(self.id, start)

    def load(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        self._backend.check_open()
        check_cells(len(tokens), 0, self._backend.n_ctx)
        self.crop(0)
        self.learn_states()
        self._hold(tokens, states)

    def close(self) -> None:
        if self._backend.opened.get(self.id) is not self:
            return
        self._forget()
        del self._backend.opened[self.id]

    def _forget(self) -> None:
        llama_cpp.llama_memory_seq_rm(self._backend.memory, self.id, -1, -1)
        self._tokens = []
        self._image_end = self._position_gap = 0

    def _hold(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        """Replace the content; the sequence is empty after an error."""
        try:
            positions = self._positions(tokens)
            self._backend.states.write(self.id, states, positions[:-1])
        except EngineError:
            self._forget()
            raise
        self._tokens = list(tokens)
        self._image_end = end_of_images(tokens)
        self._position_gap = len(tokens) - int(positions[-1])

    def _positions(self, tokens: Tokens[int]) -> Integers:
        projector = self._backend.projector
        found = None if projector is None else projector.positions(tokens)
        return np.arange(len(tokens) + 1, dtype=np.int32) if found is None else found

    def _position(self, length: int) -> int:
        """Position of a cached token, or of the next one."""
        if length >= self._image_end:
            return length - self._position_gap
        return int(self._positions(self._tokens)[length])

    @property
    def next_position(self) -> int:
        """Position of the next token."""
        return len(self._tokens) - self._position_gap

    def fill_batch(self, step: Step, batch: TokenBatch) -> None:
        """Add the tokens of a step to a batch."""
        check_cells(step.n_tokens, len(self._tokens), self._backend.n_ctx)
        is_mixed = step.tokens and step.unread
        tokens = (*step.unread, *step.tokens) if is_mixed else step.tokens or step.unread
        batch.add(self.id, tokens, self.next_position, n_rows=len(step.tokens))

    def commit_step(self, step: Step, *, is_decoded: bool) -> None:
        """Record a decoded step; after a failed one read the sequence's length from llama.cpp."""
        if not is_decoded:
            self._read_what_is_held((*step.unread, *step.tokens))
            return
        self._tokens.extend(step.unread)
        self._tokens.extend(step.tokens)

    def commit_image(self, n_tokens: int, n_positions: int) -> None:
        """Record that the last `n_tokens` tokens are an image with `n_positions` positions."""
        self._image_end = len(self._tokens)
        self._position_gap += n_tokens - n_positions

    def _read_what_is_held(self, tokens: Tokens[int]) -> None:
        """Update `tokens` from llama.cpp's cache after a partial decode."""
        last = llama_cpp.llama_memory_seq_pos_max(self._backend.memory, self.id)
        tokens = [*self._tokens, *tokens]
        positions = self._positions(tokens)[:-1]
        length = int(np.searchsorted(positions, last, side="right"))
        self._tokens = tokens[:length]
        if length and (self._backend.is_recurrent or not self._window_is_whole(length)):
            self._forget()

    def _window_is_whole(self, length: int) -> bool:
        """Whether all cells that token `length` attends to, including itself, are in the cache.

        `seq_rm` returns true even if a sliding-window cache lacks those cells.
        """
        in_memory: int = llama_cpp.llama_memory_seq_pos_min(self._backend.memory, self.id)
        return 0 <= in_memory <= max(0, length + 1 - self._backend.n_swa)

    def _why_not(self, length: int) -> str:
        if length > len(self._tokens):
            return "the sequence has fewer tokens"
        if self._backend.is_recurrent:
            return "a recurrent state cannot be rolled back"
        return f"the sliding window of {self._backend.n_swa} tokens has moved past that position"
