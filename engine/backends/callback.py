"""A function of the caller as a backend: every pass through the model is a call of it."""

import asyncio
import inspect
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from collections.abc import Sequence as Tokens
from concurrent.futures import CancelledError, Future
from typing import TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from engine.backends.base import Forward, Logits, Sequence, Step, verify_in_turn
from engine.configuration import MAX_DRAFT, Adapter, KVTypeName
from engine.errors import (
    AdapterError,
    ContextFullError,
    CropUnsupportedError,
    DecodeAborted,
    DecodeError,
    EngineError,
    StateError,
)

TargetCallback = Callable[[Tokens[int], Tokens[int]], ArrayLike | Awaitable[ArrayLike]]
"""Called with the line and a draft; gives `[len(draft) + 1, n_vocab]` logits: row `i` is what the
model says behind the line and the first `i` drafted tokens. A caller that keeps a cache finds in
the length of the line how much of the last draft was accepted."""

N_BATCH = MAX_DRAFT
"""Tokens of a prompt at once."""

T = TypeVar("T")


class CallbackVocabulary:
    """Numbers without a spelling."""

    kind = "CALLBACK"
    bos: int | None = None
    eos: int | None = None
    adds_bos = False
    adds_eos = False

    def __init__(self, n_tokens: int, is_end: Callable[[int], bool]) -> None:
        self.n_tokens = n_tokens
        self.identifier = f"callback-{n_tokens}"
        self._is_end = is_end

    def is_end(self, token: int) -> bool:
        return self._is_end(token)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        del text, add_special, parse_special
        raise DecodeError("a target function knows numbers only: give the prompt as token ids")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        del token, special
        return b""

    def text(self, token: int) -> bytes:
        return self.piece(token)


class CallbackBackend:
    """A backend whose every pass through the model is a call of the target function."""

    kv_bytes = 0
    can_crop = True
    n_sequences = 1
    shares_cells = can_slice = can_shift = False
    state_format = "callback"
    n_threads = (1, 1)
    rounds_by_threads = False
    n_batch = N_BATCH
    n_rows = 1 + MAX_DRAFT

    def __init__(
        self,
        target: TargetCallback,
        loop: "EventLoop",
        n_vocab: int,
        is_end: Callable[[int], bool],
        n_ctx: int,
    ) -> None:
        self.vocabulary = CallbackVocabulary(n_vocab, is_end)
        self.n_ctx = n_ctx
        self.is_aborted = False
        self._target = target
        self._loop = loop

    def call(self, line: Tokens[int], draft: Tokens[int]) -> Logits:
        """The target's `[len(draft) + 1, n_vocab]` float32 logits.

        Raises:
            DecodeAborted: the reply was cancelled while the function was awaited.
            DecodeError: it gave another shape, or a row in which no token can be drawn.
        """
        given = self._target(tuple(line), tuple(draft))
        given = np.asarray(self._loop.outcome(given) if inspect.isawaitable(given) else given)
        wanted = (len(draft) + 1, self.vocabulary.n_tokens)
        if given.shape != wanted or not np.issubdtype(given.dtype, np.number):
            raise DecodeError(
                f"the target function gave {given.dtype} of shape {list(given.shape)}: "
                f"{list(wanted)} logits are wanted, one row behind the line and one behind each "
                f"of the {len(draft)} drafted tokens"
            )
        logits: Logits = given.astype(np.float32, copy=False)
        if np.isnan(logits).any() or not np.isfinite(logits.max(axis=1)).all():
            raise DecodeError(
                "the target function gave a row of logits with NaN or without a largest"
            )
        return logits

    def open(self) -> "CallbackSequence":
        return CallbackSequence(self)

    def use_adapters(self, adapters: Tokens[Adapter] | None) -> None:
        if adapters:
            raise AdapterError("a model that is functions of one's own takes no adapters")

    def set_threads(self, n_threads: int) -> None:
        del n_threads

    def split_state(self, state: bytes | memoryview, at: int) -> tuple[bytes, bytes]:
        del state, at
        raise _no_state()

    def requantise(
        self, state: bytes | memoryview, type_k: KVTypeName, type_v: KVTypeName
    ) -> bytes:
        del state, type_k, type_v
        raise _no_state()

    def verify_batch(self, steps: Tokens[Step]) -> list[Forward]:
        return verify_in_turn(steps)

    def abort(self) -> None:
        self.is_aborted = True

    def clear_abort(self) -> None:
        self.is_aborted = False

    def close(self) -> None:
        """Nothing is held."""


class CallbackSequence:
    """The line of a reply; what its tokens were computed to is the caller's business."""

    def __init__(self, backend: CallbackBackend) -> None:
        self._backend = backend
        self._tokens: list[int] = []

    @property
    def tokens(self) -> Tokens[int]:
        return self._tokens

    def prefill(self, tokens: Tokens[int]) -> None:
        self._check_batch(len(tokens), self._backend.n_batch)
        self._tokens.extend(tokens)

    def decode(self, token: int) -> Forward:
        return self.verify((token,))

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        most = self._backend.n_batch if unread else self._backend.n_rows
        self._check_batch(len(unread) + len(tokens), most)
        logits = self._backend.call((*self._tokens, *unread, tokens[0]), tokens[1:])
        self._tokens.extend((*unread, *tokens))
        return Forward(logits)

    def can_crop(self, length: int) -> bool:
        return length <= len(self._tokens)

    def crop(self, length: int) -> None:
        if not self.can_crop(length):
            raise CropUnsupportedError(f"{len(self._tokens)} tokens cannot become {length}")
        del self._tokens[length:]

    def save(self, start: int = 0) -> bytes:
        del start
        raise _no_state()

    def load(self, tokens: Tokens[int], states: Tokens[bytes | memoryview]) -> None:
        del tokens, states
        self.crop(0)
        raise _no_state()

    def copy(self, source: Sequence, length: int) -> None:
        del source, length
        raise _no_state()

    def shift(self, n_keep: int, n_drop: int) -> None:
        del n_keep, n_drop
        raise CropUnsupportedError("a target function has no cells to move")

    def close(self) -> None:
        self._tokens.clear()

    def _check_batch(self, n_more: int, most: int) -> None:
        if self._backend.is_aborted:
            raise DecodeAborted("stopped")
        if n_more > most:
            raise ContextFullError(f"{n_more} tokens at once, and {most} are the most")
        if len(self._tokens) + n_more > self._backend.n_ctx:
            raise ContextFullError(
                f"{len(self._tokens)} tokens and {n_more} more do not fit into n_ctx of "
                f"{self._backend.n_ctx}"
            )


def _no_state() -> StateError:
    return StateError("a target function keeps its states itself")


class EventLoop:
    """Waits in the decoder's thread for what runs on the caller's event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: Future[object] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run what is asynchronous on this loop from now on.

        Raises:
            EngineError: a reply runs on a loop already.
        """
        if self._loop is not None:
            raise EngineError("this decoder is making a reply: await its end, or make a second one")
        self._loop = loop

    def end(self) -> None:
        """Wait no longer, from the loop's thread: what is awaited is cancelled."""
        self._loop = None
        if self._waiting is not None:
            self._waiting.cancel()

    def outcome(self, awaitable: Awaitable[T]) -> T:
        """What an asynchronous function gives.

        Raises:
            DecodeError: no loop runs it.
            DecodeAborted: the reply was cancelled.
        """
        loop = self._loop
        coroutine: Coroutine[object, object, T] = (
            awaitable if inspect.iscoroutine(awaitable) else _awaited(awaitable)
        )
        if loop is None:
            coroutine.close()
            raise DecodeError(
                "a function is asynchronous and no event loop runs it: use `generate` or `stream`"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        self._waiting = cast("Future[object]", future)
        try:
            if self._loop is None:
                future.cancel()
            return future.result()
        except CancelledError as error:
            raise DecodeAborted("stopped while a function was awaited") from error
        finally:
            self._waiting = None

    def each(self, guesses: Iterable[T] | AsyncIterable[T]) -> Iterator[T]:
        """The items of a generator, pulled one at a time and closed at the end."""
        if not isinstance(guesses, AsyncIterable):
            yield from guesses
            return
        iterator = aiter(guesses)
        try:
            while (found := self.outcome(_next(iterator))) is not None:
                yield found[0]
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None and self._loop is not None:
                self.outcome(close())


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _next(iterator: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(iterator),)
    except StopAsyncIteration:
        return None
