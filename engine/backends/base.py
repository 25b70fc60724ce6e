"""The backend interface: one model, one context, token sequences in it."""

from abc import ABC, abstractmethod
from collections.abc import Container
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.configuration import Adapter
from engine.errors import AdapterError, ContextFullError, CropUnsupportedError, StateError
from engine.images import Image, ImageError, image_start_at
from engine.memory.units import BufferSize

Logits = NDArray[np.float32]
State = bytes | memoryview
"""Saved state of a sequence, in the backend's own format."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The result of decoding n tokens.

    `logits` is `[n, n_vocab]` float32 and may be a view of the backend's memory: it is valid until
    the next call on the same backend.
    """

    logits: Logits


class Vocabulary(ABC):
    """A tokenizer."""

    n_tokens: int
    identifier: str
    """Fingerprint; equal if token ids have the same meaning."""
    kind: str
    """Family of the tokenizer, such as `BPE` or `SPM`."""
    bos: int | None = None
    eos: int | None = None
    adds_bos = False
    """Whether `tokenize(add_special=True)` puts a BOS token first."""
    adds_eos = False
    """Whether `tokenize(add_special=True)` puts an EOS token last."""
    no_images = "this backend does not support images: use llama.cpp with the model's projector"
    """Why images have no tokens; empty if they have."""

    @abstractmethod
    def is_end(self, token: int) -> bool:
        """Whether the token ends a turn or the text."""

    @abstractmethod
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokenize a text; with `parse_special` control tokens in it are recognised."""

    @abstractmethod
    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; control tokens are empty unless `special`."""

    def text(self, token: int) -> bytes:
        """The vocabulary entry of a token as in the model file."""
        return self.piece(token, special=True)

    def image_tokens(self, image: Image) -> tuple[int, ...]:
        """Tokens of an image: negative numbers, with tokens of words between them.

        Equal images have equal tokens with the same projector. The file is not read until the
        tokens are decoded.

        Raises:
            ImageError: there is no projector, or it refuses the image.
        """
        raise ImageError(f"{image.name} is an image, but {self.no_images}")


class Sequence:
    """A token sequence whose keys and values are in the cache.

    The default methods decode through `Backend.verify_batch`, crop to any length and save nothing.
    """

    no_states = "this backend cannot save states"

    def __init__(self, backend: "Backend") -> None:
        self._backend = backend
        self._tokens: list[int] = []

    @property
    def tokens(self) -> Tokens[int]:
        """Tokens in the cache."""
        return self._tokens

    def prefill(self, tokens: Tokens[int]) -> None:
        """Decode at most `Backend.n_batch` tokens without logits.

        Raises:
            ContextFullError: more tokens than free cells; nothing was decoded.
            DecodeAborted: stopped by `Backend.abort`; `tokens` are those in the cache.
            DecodeError: the backend failed; `tokens` are those in the cache.
        """
        if tokens:
            self._backend.verify_batch((Step(self, unread=tokens),))

    def decode(self, token: int) -> Forward:
        """Decode one token, as `verify([token])`."""
        return self.verify((token,))

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        """Decode tokens in one batch and return the logits after each of them.

        Args:
            tokens: At most `Backend.n_rows` tokens.
            unread: Tokens before them in the same batch, without logits.

        Raises:
            ContextFullError: more tokens than free cells, more rows than `Backend.n_rows`, or with
                `unread` more tokens than `Backend.n_batch`; nothing was decoded.
            DecodeAborted: stopped by `Backend.abort`; `tokens` are those in the cache.
            DecodeError: the backend failed; `tokens` are those in the cache.
        """
        [forward] = self._backend.verify_batch((Step(self, tokens, unread),))
        return forward

    def can_crop(self, length: int) -> bool:
        """Whether `crop(length)` restores the cache exactly as it was at that length."""
        return 0 <= length <= len(self._tokens)

    def crop(self, length: int) -> None:
        """Truncate to the first `length` tokens; `crop(0)` always works.

        Raises:
            CropUnsupportedError: the cache lacks older data (a sliding window has moved on, a
                recurrent state has no history); it is unchanged.
        """
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"a sequence of {len(self._tokens)} tokens cannot be cropped to {length}"
            )
        del self._tokens[length:]

    def save(self, start: int = 0) -> State:
        """Save the state of the tokens from `start` on.

        `start` other than 0 needs `Backend.can_slice`. The state does not identify the model or the
        tokens; the caller stores both.
        """
        del start
        raise StateError(self.no_states)

    def load(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        """Replace the content by `tokens`, restored from consecutive saved states.

        Raises:
            StateError: the backend refuses the states; the sequence is then empty.
            ContextFullError: more tokens than free cells.
        """
        del tokens, states
        self.crop(0)
        raise StateError(self.no_states)

    def close(self) -> None:
        """Free the cells."""
        self._tokens.clear()


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens of one sequence in a batch of several."""

    sequence: Sequence
    tokens: Tokens[int] = ()
    """Tokens with a row of logits each."""
    unread: Tokens[int] = ()
    """Tokens before them without logits; a step with only these is a prefill chunk."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens of both kinds."""
        return len(self.unread) + len(self.tokens)


class Backend(ABC):
    """One model and one context; used from one thread at a time, `abort` from any.

    Subclasses override `verify_batch`, or `prefill` and `verify` of their sequences.
    """

    vocabulary: Vocabulary
    n_ctx: int
    """Cells of one sequence."""
    n_batch: int
    """Maximum tokens of a batch, over all sequences."""
    n_rows: int
    """Maximum rows of logits of a batch, over all sequences.

    At least one more than the longest draft, and one per sequence.
    """
    n_sequences = 1
    """Maximum number of open sequences."""
    n_threads: tuple[int, int] = (1, 1)
    """Initial threads of decode steps and of prefills."""
    kv_bytes = 0
    """Allocated bytes of the KV cache."""
    buffers: tuple[BufferSize, ...] = ()
    """Allocated buffers."""
    notes: tuple[str, ...] = ()
    """Messages for the user from loading and the trial decode."""
    can_crop = True
    """Whether sequences can be truncated by a draft's length, as speculation needs."""
    state_format: str
    """Name of the format of saved states, including the build of the library.

    Backends with equal names can load each other's states if model and settings are equal.
    """
    no_adapters = "this backend does not support adapters"
    is_aborted = False

    @property
    def can_slice(self) -> bool:
        """Whether the state from any token on can be saved: only with full attention."""
        return False

    @abstractmethod
    def open(self) -> Sequence:
        """Open an empty sequence; a backend with a single sequence empties that one.

        Raises:
            ContextFullError: all `n_sequences` are open.
        """

    def verify_batch(self, steps: Tokens[Step]) -> list[Forward]:
        """Decode steps of several sequences in one batch; return one `Forward` per step, in order.

        A single step is the same as `verify` of its sequence.

        Args:
            steps: Steps of different sequences with at most `n_rows` rows and, if any token has no
                row, at most `n_batch` tokens in total.

        Raises:
            ContextFullError: these limits or the free cells are exceeded; nothing was decoded.
            DecodeAborted: stopped by `abort`; `tokens` of each sequence are those in the cache.
            DecodeError: the backend failed; `tokens` of each sequence are those in the cache.
        """
        return [Forward(_logits_of(step).copy()) for step in steps]

    def warm_up(self) -> None:  # noqa: B027  optional
        """Decode a few tokens as a trial, so that the first reply does not wait for setup."""

    def set_threads(self, n_threads: int) -> None:  # noqa: B027  optional
        """Set the number of threads for all batches from the next call on."""

    def use_adapters(self, adapters: Tokens[Adapter] | None) -> None:
        """Set the low-rank adapters of all sequences; None is the initial ones.

        Cached tokens are not recomputed.

        Raises:
            AdapterError: a file is missing or not an adapter of this model, or the backend supports
                none; the adapters are unchanged.
        """
        if adapters:
            raise AdapterError(self.no_adapters)

    def abort(self) -> None:
        """Stop the running decode, which raises `DecodeAborted`; called from another thread."""
        self.is_aborted = True

    def clear_abort(self) -> None:
        """Allow decodes again."""
        self.is_aborted = False

    def close(self) -> None:  # noqa: B027  optional
        """Free model and context; a second call does nothing."""


def _logits_of(step: Step) -> Logits:
    if step.tokens:
        return step.sequence.verify(step.tokens, unread=step.unread).logits
    step.sequence.prefill(step.unread)
    return np.empty((0, 0), np.float32)


def check_steps(steps: Tokens[Step], *, n_rows: int, n_batch: int) -> int:
    """Check that steps fit into a batch; return their number of rows.

    Raises:
        ContextFullError: they exceed `Backend.n_rows` or `Backend.n_batch`.
    """
    n_asked = sum(len(step.tokens) for step in steps)
    n_tokens = sum(step.n_tokens for step in steps)
    if n_asked > n_rows:
        raise ContextFullError(
            f"{n_asked} rows of logits were requested, but the context reserves only {n_rows}: "
            f"draft at most {n_rows - len(steps)} tokens"
        )
    if n_tokens > n_batch and n_tokens > n_asked:
        raise ContextFullError(
            f"a batch of {n_asked} tokens plus {n_tokens - n_asked} prompt tokens was "
            f"requested, but n_batch is {n_batch}: prefill fewer tokens per batch"
        )
    return n_asked


def check_cells(n_tokens: int, n_held: int, n_ctx: int) -> None:
    """Raise `ContextFullError` if more than the free cells are needed."""
    if n_tokens > n_ctx - n_held:
        raise ContextFullError(
            f"{n_tokens} more tokens were requested, but only {n_ctx - n_held} of {n_ctx} "
            "cells are free: raise n_ctx, or shorten the chat"
        )


def free_number(opened: Container[int], n_sequences: int) -> int | None:
    """Number of the first closed sequence; None if the backend has only one and it is open.

    Raises:
        ContextFullError: all of several sequences are open.
    """
    number = next((each for each in range(n_sequences) if each not in opened), None)
    if number is None and n_sequences > 1:
        raise ContextFullError(
            f"all {n_sequences} slots of the model are in use: close a sequence, or load "
            "the model with more slots"
        )
    return number


def common_prefix(first: Tokens[int], second: Tokens[int], *, known: int = 0) -> int:
    """Length of the common prefix of two sequences; the first `known` tokens are not compared."""
    n_max = min(len(first), len(second))
    for index in range(min(known, n_max), n_max):
        if first[index] != second[index]:
            return index
    return n_max


def rewind(sequence: Sequence, tokens: Tokens[int], *, known: int = 0) -> int:
    """Crop a sequence to its common prefix with `tokens`; return that length.

    The first `known` tokens are not compared. An image segment is never cropped in the middle.

    Prefix reuse, regenerate, edit, branch and the roll-back of a draft use this function. If the
    prefix cannot be restored (sliding window, recurrent state), the sequence is emptied.
    """
    length = image_start_at(tokens, common_prefix(sequence.tokens, tokens, known=known))
    if length == len(sequence.tokens):
        return length
    if not sequence.can_crop(length):
        length = 0
    sequence.crop(length)
    return length
