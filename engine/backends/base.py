"""The backend interface: one model, one context, token sequences in it."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from engine.configuration import Adapter
from engine.errors import ContextFullError
from engine.images import Image, image_start_at

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Forward:
    """The result of decoding n tokens.

    `logits` is `[n, n_vocab]` float32 and may be a view of the backend's memory: it is valid until
    the next call on the same backend.
    """

    logits: Logits


class Vocabulary(Protocol):
    """A tokenizer."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def identifier(self) -> str:
        """Fingerprint; equal if token ids have the same meaning."""
        ...

    @property
    def kind(self) -> str:
        """Family of the tokenizer, such as `BPE` or `SPM`."""
        ...

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> int | None: ...

    @property
    def adds_bos(self) -> bool:
        """Whether `tokenize(add_special=True)` puts a BOS token first."""
        ...

    @property
    def adds_eos(self) -> bool:
        """Whether `tokenize(add_special=True)` puts an EOS token last."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends a turn or the text."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokenize a text; with `parse_special` control tokens in it are recognised."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; control tokens are empty unless `special`."""
        ...

    def text(self, token: int) -> bytes:
        """The vocabulary entry of a token as in the model file."""
        ...


class Sequence(Protocol):
    """A token sequence whose keys and values are in the cache."""

    @property
    def tokens(self) -> Tokens[int]:
        """Tokens in the cache."""
        ...

    def prefill(self, tokens: Tokens[int]) -> None:
        """Decode at most `Backend.n_batch` tokens without logits.

        Raises:
            ContextFullError: more tokens than free cells; nothing was decoded.
            DecodeAborted: stopped by `Backend.abort`; `tokens` are those in the cache.
            DecodeError: the backend failed; `tokens` are those in the cache.
        """
        ...

    def decode(self, token: int) -> Forward:
        """Decode one token, as `verify([token])`."""
        ...

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
        ...

    def can_crop(self, length: int) -> bool:
        """Whether `crop(length)` restores the cache exactly as it was at that length."""
        ...

    def crop(self, length: int) -> None:
        """Truncate to the first `length` tokens; `crop(0)` always works.

        Raises:
            CropUnsupportedError: the cache lacks older data (a sliding window has moved on, a
                recurrent state has no history); it is unchanged.
        """
        ...

    def save(self, start: int = 0) -> bytes | memoryview:
        """Save the state of the tokens from `start` on, in the backend's own format.

        `start` other than 0 needs `Backend.can_slice`. The state does not identify the model or the
        tokens; the caller stores both.
        """
        ...

    def load(self, tokens: Tokens[int], states: Tokens[bytes | memoryview]) -> None:
        """Replace the content by `tokens`, restored from consecutive saved states.

        Raises:
            StateError: the backend refuses the states; the sequence is then empty.
            ContextFullError: more tokens than free cells.
        """
        ...

    def close(self) -> None:
        """Free the cells."""
        ...


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


class Backend(Protocol):
    """One model and one context; used from one thread at a time, `abort` from any."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def n_ctx(self) -> int:
        """Cells of one sequence."""
        ...

    @property
    def n_batch(self) -> int:
        """Maximum tokens of a batch, over all sequences."""
        ...

    @property
    def n_rows(self) -> int:
        """Maximum rows of logits of a batch, over all sequences.

        At least one more than the longest draft, and one per sequence.
        """
        ...

    @property
    def kv_bytes(self) -> int:
        """Allocated bytes of the KV cache."""
        ...

    @property
    def can_crop(self) -> bool:
        """Whether sequences can be truncated by a draft's length, as speculation needs."""
        ...

    @property
    def n_sequences(self) -> int:
        """Maximum number of open sequences."""
        ...

    @property
    def can_slice(self) -> bool:
        """Whether the state from any token on can be saved: only with full attention."""
        ...

    @property
    def state_format(self) -> str:
        """Name of the format of saved states, including the build of the library.

        Backends with equal names can load each other's states if model and settings are equal.
        """
        ...

    @property
    def n_threads(self) -> tuple[int, int]:
        """Initial threads of decode steps and of prefills."""
        ...

    def set_threads(self, n_threads: int) -> None:
        """Set the number of threads for all batches from the next call on."""
        ...

    def use_adapters(self, adapters: Tokens[Adapter] | None) -> None:
        """Set the low-rank adapters of all sequences; None is the initial ones.

        Cached tokens are not recomputed.

        Raises:
            AdapterError: a file is missing or not an adapter of this model, or the backend supports
                none; the adapters are unchanged.
        """
        ...

    def open(self) -> Sequence:
        """Open an empty sequence; a backend with a single sequence empties that one.

        Raises:
            ContextFullError: all `n_sequences` are open.
        """
        ...

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
        ...

    def abort(self) -> None:
        """Stop the running decode, which raises `DecodeAborted`; called from another thread."""
        ...

    def clear_abort(self) -> None:
        """Allow decodes again."""
        ...

    def close(self) -> None:
        """Free model and context; a second call does nothing."""
        ...


@runtime_checkable
class ReadsImages(Protocol):
    """A vocabulary with tokens for images, of a model with a projector."""

    def image_tokens(self, image: Image) -> tuple[int, ...]:
        """Tokens of an image: negative numbers, with tokens of words between them.

        Equal images have equal tokens with the same projector. The file is not read until the
        tokens are decoded.

        Raises:
            ImageError: there is no projector, or it refuses the image.
        """
        ...


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
