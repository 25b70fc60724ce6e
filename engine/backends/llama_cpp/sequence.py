"""The one line of tokens in a llama.cpp context."""

import ctypes
from collections.abc import Sequence as Tokens

import llama_cpp
import numpy as np

from engine.backends.base import Forward, Logits
from engine.backends.llama_cpp.batch import Batch
from engine.errors import (
    ContextFullError,
    CropUnsupportedError,
    DecodeAborted,
    DecodeError,
)

SEQUENCE = 0
DECODED, NO_CELLS, ABORTED = 0, 1, 2


class LlamaCppSequence:
    """Invariant: the context's memory holds exactly `tokens`, at positions 0, 1, ….

    A sliding window has moved on from early tokens; `can_crop` knows how far back is whole.
    """

    def __init__(
        self,
        context: object,
        *,
        n_ctx: int,
        n_batch: int,
        n_rows: int,
        n_vocab: int,
        n_swa: int,
        is_recurrent: bool,
    ) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._n_ctx = n_ctx
        self._n_batch = n_batch
        self._n_rows = n_rows
        self._n_vocab = n_vocab
        self._n_swa = n_swa
        self._is_recurrent = is_recurrent
        self._batch = Batch(max(n_batch, n_rows))
        self._tokens: list[int] = []
        self._logits_address = 0
        self._logits: Logits = np.empty((0, n_vocab), dtype=np.float32)

    @property
    def tokens(self) -> Tokens[int]:
        return self._tokens

    def prefill(self, tokens: Tokens[int]) -> None:
        if len(tokens) > self._n_batch:
            raise ContextFullError(
                f"a prefill of {len(tokens)} tokens was asked but a batch holds {self._n_batch}: "
                "split it"
            )
        self._decode(tokens, logits=False)

    def decode(self, token: int) -> Forward:
        return self.verify((token,))

    def verify(self, tokens: Tokens[int]) -> Forward:
        if len(tokens) > self._n_rows:
            raise ContextFullError(
                f"logits of {len(tokens)} rows were asked but the context reserves "
                f"{self._n_rows}: draft at most {self._n_rows - 1} tokens"
            )
        self._decode(tokens, logits=True)
        return Forward(self._read_logits(len(tokens)))

    def can_crop(self, length: int) -> bool:
        held = len(self._tokens)
        if length in (0, held):
            return True
        if length > held or self._is_recurrent:
            return False
        return self._window_is_whole(length)

    def crop(self, length: int) -> None:
        if length == len(self._tokens):
            return
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"the cache holds {len(self._tokens)} tokens and cannot go back to {length}: "
                f"{self._why_not(length)}; start again from 0"
            )
        start = length if length else -1
        if not llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, start, -1):
            raise CropUnsupportedError(
                f"llama.cpp refused to cut the cache back from {len(self._tokens)} to {length} "
                "tokens; start again from 0"
            )
        del self._tokens[length:]

    def close(self) -> None:
        """Give the cells back; the batch is freed with it."""
        if self._tokens:
            self.crop(0)
        self._batch.close()

    def _decode(self, tokens: Tokens[int], *, logits: bool) -> None:
        n_free = self._n_ctx - len(self._tokens)
        if len(tokens) > n_free:
            raise ContextFullError(
                f"{len(tokens)} more tokens were asked but {n_free} of {self._n_ctx} cells are "
                "free: raise the context, or shorten the chat"
            )
        self._batch.fill(tokens, len(self._tokens), logits=logits)
        status = llama_cpp.llama_decode(self._context, self._batch.native)
        if status == DECODED:
            self._tokens.extend(tokens)
            return
        self._read_what_is_held(tokens)
        raise _failure(status, len(tokens), len(self._tokens))

    def _read_what_is_held(self, tokens: Tokens[int]) -> None:
        """Agree with the memory after a decode that stopped half-way."""
        last = llama_cpp.llama_memory_seq_pos_max(self._memory, SEQUENCE)
        length = last + 1
        self._tokens = [*self._tokens, *tokens][:length]
        if length and (self._is_recurrent or not self._window_is_whole(length)):
            llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, -1, -1)
            self._tokens = []

    def _window_is_whole(self, length: int) -> bool:
        """Whether every cell that token `length` attends to is still there.

        The rule of llama.cpp's server: `seq_rm` itself returns True on a sliding-window cache that
        it leaves without the cells of the window.
        """
        first: int = llama_cpp.llama_memory_seq_pos_min(self._memory, SEQUENCE)
        return first == 0 or 0 < first < max(0, length - self._n_swa)

    def _why_not(self, length: int) -> str:
        if length > len(self._tokens):
            return "it is shorter"
        if self._is_recurrent:
            return "a recurrent state has no past"
        return f"the sliding window of {self._n_swa} tokens has moved on"

    def _read_logits(self, n_rows: int) -> Logits:
        """Give a view of llama.cpp's rows; it is made anew when they moved."""
        pointer = llama_cpp.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if address is None:
            raise DecodeError("llama.cpp gave no logits behind a decode: reload the model")
        if address != self._logits_address:
            self._logits_address = address
            values = (ctypes.c_float * (self._n_rows * self._n_vocab)).from_address(address)
            self._logits = np.ctypeslib.as_array(values).reshape(self._n_rows, self._n_vocab)
        return self._logits[:n_rows]


def _failure(
    status: int, n_asked: int, n_held: int
) -> DecodeAborted | ContextFullError | DecodeError:
    if status == ABORTED:
        return DecodeAborted(f"stopped; the cache holds {n_held} tokens")
    if status == NO_CELLS:
        return ContextFullError(
            f"llama.cpp found no cells for {n_asked} tokens behind {n_held}: raise the context, or "
            "shorten the chat"
        )
    return DecodeError(
        f"llama_decode gave {status} for {n_asked} tokens behind {n_held}: the log has the reason; "
        "reload the model"
    )
