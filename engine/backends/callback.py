"""A backend whose forward passes are calls of a user's function."""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from collections.abc import Sequence as Tokens
from concurrent.futures import CancelledError, Future
from typing import TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from engine.backends.base import Backend, Forward, Logits, Sequence, Vocabulary, check_cells
from engine.configuration import MAX_DRAFT
from engine.errors import ContextFullError, DecodeAborted, DecodeError, EngineError

TargetCallback = Callable[[Tokens[int], Tokens[int]], ArrayLike | Awaitable[ArrayLike]]
"""Called with the sequence and a draft; returns `[len(draft) + 1, n_vocab]` logits: row `i` is for
the token after the sequence and the first `i` drafted tokens. A function with a cache can see from
the length of the sequence how much of the last draft was accepted."""

N_BATCH = MAX_DRAFT
"""Prompt tokens per call."""

T = TypeVar("T")


class CallbackVocabulary(Vocabulary):
    """Token ids without text."""

    kind = "CALLBACK"

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


class CallbackBackend(Backend):
    """A backend that calls the target function for every forward pass."""

    state_format = "callback"
    no_adapters = "a target function does not support adapters"
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
            DecodeError: its result has another shape, or a row with NaN or without a finite logit.
        """
        given = self._target(tuple(line), tuple(draft))
        given = np.asarray(self._loop.outcome(given) if inspect.isawaitable(given) else given)
        wanted = (len(draft) + 1, self.vocabulary.n_tokens)
        if given.shape != wanted or not np.issubdtype(given.dtype, np.number):
            raise DecodeError(
                f"the target function returned {given.dtype} of shape {list(given.shape)} "
                f"instead of logits of shape {list(wanted)}: return {wanted[0]} rows, one for the "
                "token after the text and one for the token after each drafted token"
            )
        logits: Logits = given.astype(np.float32, copy=False)
        if np.isnan(logits).any() or not np.isfinite(logits.max(axis=1)).all():
            raise DecodeError(
                "the target function returned logits that contain NaN or have no finite maximum"
            )
        return logits

    def open(self) -> "CallbackSequence":
        return CallbackSequence(self)


class CallbackSequence(Sequence):
    """The tokens of a reply; any cache is up to the target function."""

    no_states = "a target function cannot save states"
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
    """Waits in the decoder's threads for coroutines on the caller's event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[Future[object]] = set()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop that runs coroutines.

        Raises:
            EngineError: a reply already runs on a loop.
        """
        if self._loop is not None:
            raise EngineError(
                "this decoder is already generating: wait for it to end, or create another decoder"
            )
        self._loop = loop

    def end(self) -> None:
        """Cancel the awaited coroutines and remove the loop; called from the loop's thread."""
        self._loop = None
        for future in tuple(self._waiting):
            future.cancel()

    def outcome(self, awaitable: Awaitable[T]) -> T:
        """Run an awaitable on the loop and return its result.

        Raises:
            DecodeError: there is no loop.
            DecodeAborted: the reply was cancelled.
        """
        loop = self._loop
        if loop is None:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise DecodeError(
                "an asynchronous target function needs an event loop: use `generate` or `stream`"
            )
        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop)
        self._waiting.add(cast("Future[object]", future))
        try:
            if self._loop is None:
                future.cancel()
            return future.result()
        except CancelledError as error:
            raise DecodeAborted("the reply was stopped in the target function") from error
        finally:
            self._waiting.discard(cast("Future[object]", future))

    def each(self, given: Iterable[T] | AsyncIterable[T]) -> Iterator[T]:
        """Iterate over a sync or async generator and close it at the end."""
        if not isinstance(given, AsyncIterable):
            yield from given
            return
        iterator = aiter(given)
        try:
            while (found := self.outcome(_next(iterator))) is not None:
                yield found[0]
        finally:
            if isinstance(iterator, AsyncGenerator) and self._loop is not None:
                self.outcome(iterator.aclose())


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _next(iterator: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(iterator),)
    except StopAsyncIteration:
        return None
