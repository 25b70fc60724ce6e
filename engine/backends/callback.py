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

from engine.backends.base import Forward, Logits
from engine.backends.defaults import BaseBackend, BaseSequence, check_cells
from engine.configuration import MAX_DRAFT
from engine.errors import ContextFullError, DecodeAborted, DecodeError, EngineError

TargetCallback = Callable[[Tokens[int], Tokens[int]], ArrayLike | Awaitable[ArrayLike]]
"""Called with the line and a draft; gives `[len(draft) + 1, n_vocab]` logits: row `i` is what the
model says after the line and the first `i` drafted tokens. A caller that keeps a cache finds in
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
        raise DecodeError("a target function has no tokenizer: pass the prompt as token ids")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        del token, special
        return b""

    def text(self, token: int) -> bytes:
        return self.piece(token)


class CallbackBackend(BaseBackend):
    """A backend whose every pass through the model is a call of the target function."""

    kv_bytes = 0
    can_slice = False
    state_format = "callback"
    no_adapters = "a target function does not support adapters"
    no_states = "a target function cannot save states"
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
                f"the target function returned {given.dtype} of shape {list(given.shape)} "
                f"instead of logits of shape {list(wanted)}: return one row for the next token "
                f"and one after each of the {len(draft)} drafted tokens"
            )
        logits: Logits = given.astype(np.float32, copy=False)
        if np.isnan(logits).any() or not np.isfinite(logits.max(axis=1)).all():
            raise DecodeError(
                "the target function returned logits that contain NaN or have no finite maximum"
            )
        return logits

    def open(self) -> "CallbackSequence":
        return CallbackSequence(self)


class CallbackSequence(BaseSequence):
    """The line of a reply; what its tokens were computed to is the caller's business."""

    no_states = CallbackBackend.no_states
    _backend: CallbackBackend

    def prefill(self, tokens: Tokens[int]) -> None:
        self._check_batch(len(tokens), self._backend.n_batch)
        self._tokens.extend(tokens)

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        most = self._backend.n_batch if unread else self._backend.n_rows
        self._check_batch(len(unread) + len(tokens), most)
        logits = self._backend.call((*self._tokens, *unread, tokens[0]), tokens[1:])
        self._tokens.extend((*unread, *tokens))
        return Forward(logits)

    def _check_batch(self, n_more: int, most: int) -> None:
        if self._backend.is_aborted:
            raise DecodeAborted("stopped")
        if n_more > most:
            raise ContextFullError(
                f"a batch of {n_more} tokens was requested, but the limit "
                f"is {most}: pass fewer tokens at once"
            )
        check_cells(n_more, len(self._tokens), self._backend.n_ctx)


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
            raise EngineError(
                "this decoder is already generating: wait for it to end, or create another decoder"
            )
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
                "an asynchronous target function needs an event loop: use `generate` or `stream`"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        self._waiting = cast("Future[object]", future)
        try:
            if self._loop is None:
                future.cancel()
            return future.result()
        except CancelledError as error:
            raise DecodeAborted("stopped while waiting for the target function") from error
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
