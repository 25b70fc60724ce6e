"""What a backend promises: one model, one context, sequences of tokens in it."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from engine.configuration import Adapter
from engine.errors import ContextFullError
from engine.images import Image, before_image

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Forward:
    """The outcome of decoding n tokens.

    `logits` is `[n, n_vocab]` float32 and may be a view of the backend's memory: it is valid until
    the next call on the same backend.
    """

    logits: Logits


class Vocabulary(Protocol):
    """Text to tokens and back."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def identifier(self) -> str:
        """Fingerprint: equal where token ids mean the same."""
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
        """The tokens of a text; `parse_special` reads control tokens out of it."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; control tokens are empty unless `special`."""
        ...

    def text(self, token: int) -> bytes:
        """The entry of the vocabulary as the model's file spells it."""
        ...


class Sequence(Protocol):
    """One line of tokens whose keys and values the backend holds."""

    @property
    def tokens(self) -> Tokens[int]:
        """The tokens that were decoded and are still held."""
        ...

    def prefill(self, tokens: Tokens[int]) -> None:
        """Decode at most `Backend.n_batch` tokens without logits.

        Raises:
            ContextFullError: more tokens than free cells; nothing was decoded.
            DecodeAborted: stopped by `Backend.abort`; `tokens` says what is held.
            DecodeError: the backend failed; `tokens` says what is held.
        """
        ...

    def decode(self, token: int) -> Forward:
        """Decode one token; the same as `verify([token])`."""
        ...

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        """Decode tokens and give the logits after each of them, in one batch.

        Args:
            tokens: At most `Backend.n_rows`.
            unread: Tokens that go before them in the same batch, without logits.

        Raises:
            ContextFullError: more tokens than free cells, more rows than `Backend.n_rows`, or with
                `unread` more tokens than `Backend.n_batch`; nothing was decoded.
            DecodeAborted: stopped by `Backend.abort`; `tokens` says what is held.
            DecodeError: the backend failed; `tokens` says what is held.
        """
        ...

    def can_crop(self, length: int) -> bool:
        """Whether `crop(length)` would leave a cache that is as if never longer."""
        ...

    def crop(self, length: int) -> None:
        """Hold the first `length` tokens only; absolute, and `crop(0)` always works.

        Raises:
            CropUnsupportedError: the cache does not hold what the shorter line needs (a sliding
                window has moved on, a recurrent state has no past); it is unchanged.
        """
        ...

    def save(self, start: int = 0) -> bytes | memoryview:
        """The state of the tokens from `start` on, in the backend's own format.

        `start` other than 0 needs `Backend.can_slice`. Nothing in it names the model or the tokens:
        whoever keeps it must.
        """
        ...

    def load(self, tokens: Tokens[int], states: Tokens[bytes | memoryview]) -> None:
        """Hold `tokens` instead of what is held, from saved states that follow one another.

        Raises:
            StateError: the backend refuses the states; the sequence is empty then.
            ContextFullError: more tokens than free cells.
        """
        ...

    def close(self) -> None:
        """Free the cells."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What one sequence decodes in a batch that others share."""

    sequence: Sequence
    tokens: Tokens[int] = ()
    """Those that get a row of logits each."""
    unread: Tokens[int] = ()
    """Those that go before them without logits; a step of these alone is a part of a prefill."""

    @property
    def n_tokens(self) -> int:
        """Tokens that it decodes."""
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
        """Most tokens of one batch, whosever they are."""
        ...

    @property
    def n_rows(self) -> int:
        """Most rows of logits of one batch, whosever they are.

        At least one more than the longest draft has, and one for each sequence.
        """
        ...

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache as allocated."""
        ...

    @property
    def can_crop(self) -> bool:
        """Whether sequences can be cut back by a draft's length, so that speculation works."""
        ...

    @property
    def n_sequences(self) -> int:
        """Most sequences that are open at once."""
        ...

    @property
    def can_slice(self) -> bool:
        """Whether saved states can be cut at any token: full attention and nothing else."""
        ...

    @property
    def state_format(self) -> str:
        """Name of the format of saved states, build of the library included.

        Backends with equal names read each other's, as far as model and settings agree.
        """
        ...

    @property
    def n_threads(self) -> tuple[int, int]:
        """Threads that it was opened with: of decode steps, of prefills."""
        ...

    def set_threads(self, n_threads: int) -> None:
        """Compute with another number of threads from the next call on, whatever its batch."""
        ...

    def use_adapters(self, adapters: Tokens[Adapter] | None) -> None:
        """Decode with these low-rank adapters and no others from now on, in every sequence.

        None is those that it was opened with. What sequences hold stays as the adapters before
        made it.

        Raises:
            AdapterError: a file is missing or no adapter of this model, or the backend has none;
                those before stay.
        """
        ...

    def split_state(self, state: bytes | memoryview, at: int) -> tuple[bytes, bytes]:
        """Cut a saved state after its first `at` tokens; needs `can_slice`. Any thread may ask.

        Raises:
            StateError: the state is damaged, or has not more than `at` tokens.
        """
        ...

    def open(self) -> Sequence:
        """An empty sequence; a backend with room for one only empties that one.

        Raises:
            ContextFullError: all `n_sequences` are open.
        """
        ...

    def verify_batch(self, steps: Tokens[Step]) -> list[Forward]:
        """Decode steps of several sequences at once; each has its rows in the order of `steps`.

        A step alone is the same as `verify` of its sequence.

        Args:
            steps: Each of another sequence; together at most `n_rows` rows and, unless they are
                rows alone, `n_batch` tokens.

        Raises:
            ContextFullError: they are more, or there are no cells for them; nothing was decoded.
            DecodeAborted: stopped by `abort`; each sequence's `tokens` say what is held.
            DecodeError: the backend failed; each sequence's `tokens` say what is held.
        """
        ...

    def abort(self) -> None:
        """Stop the decode that runs now, from another thread; it raises `DecodeAborted`."""
        ...

    def clear_abort(self) -> None:
        """Let decodes run again."""
        ...

    def close(self) -> None:
        """Free model and context; closing twice is harmless."""
        ...


@runtime_checkable
class ReadsImages(Protocol):
    """A vocabulary that has tokens for images, because a projector lies beside the model."""

    def image_tokens(self, image: Image) -> tuple[int, ...]:
        """What stands for an image in a line: negative numbers, and tokens of words between them.

        Equal images have equal tokens, as far as the projector is the same. The file need not be
        there: it is read where its tokens are decoded.

        Raises:
            ImageError: there is no projector, or it refuses the image.
        """
        ...


def check_steps(steps: Tokens[Step], *, n_rows: int, n_batch: int) -> int:
    """The rows of logits that steps ask for, where these and their tokens fit into a batch.

    Raises:
        ContextFullError: they are more than `Backend.n_rows` or `Backend.n_batch`.
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
    """The number of leading tokens that two lines share, of which `known` are not compared."""
    n_max = min(len(first), len(second))
    for index in range(min(known, n_max), n_max):
        if first[index] != second[index]:
            return index
    return n_max


def rewind(sequence: Sequence, tokens: Tokens[int], *, known: int = 0) -> int:
    """Cut a sequence back to what it shares with `tokens`, and give that length.

    The first `known` tokens are known to agree and are not compared. An image is held up to a
    stretch's end or not at all.

    This one function serves reuse of a prefix, regenerate, edit, branch and the roll-back of a
    draft. Where the shared part cannot be kept (sliding window, recurrent state), everything goes.
    """
    length = before_image(tokens, common_prefix(sequence.tokens, tokens, known=known))
    if length == len(sequence.tokens):
        return length
    if not sequence.can_crop(length):
        length = 0
    sequence.crop(length)
    return length
