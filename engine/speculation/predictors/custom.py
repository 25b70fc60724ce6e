"""Runs a predictor that is passed to a session: checks its tokens, and waits for no late one."""

import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from engine.background import start_thread
from engine.errors import EngineError, PredictorError, shown
from engine.sampling import Distribution
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.base import DraftToken, Predictor

MIN_LATE_S, LATE_STEPS = 0.1, 8.0
"""Seconds and plain steps after which a drafted token is late, whichever is longer: other programs
can delay any code by tens of milliseconds, and a first token may cost a catch-up."""
MAX_LATE = 8
"""Rounds in a row with a late token until the predictor fails."""

T = TypeVar("T")
Jobs = SimpleQueue[Callable[[], None] | None]


class CustomPredictor:
    """Calls a custom predictor in a thread of its own, one call after the other.

    A draft ends before a late token, which is discarded when it arrives; until then the predictor
    is not asked again. `propose` raises a `PredictorError` if any call raised, for a token outside
    the vocabulary, for an invalid confidence or distribution, and for repeated lateness.
    """

    def __init__(self, inner: Predictor, n_vocab: int, plain_step: PlainStep) -> None:
        self.name = inner.name
        self._inner, self._n_vocab, self._plain_step = inner, n_vocab, plain_step
        self._proposed: Iterator[DraftToken] = iter(())
        self._fault: BaseException | None = None
        self._late: Future[DraftToken | None] | None = None
        self._n_late = 0
        self._jobs: Jobs = SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)
        start_thread(partial(_work, self._jobs), name="custom-predictor")

    def reset(self, history: Sequence[int]) -> None:
        """Start a reply after these tokens, without waiting."""
        self._n_late = 0
        self._send(self._reset, tuple(history))

    def commit(self, tokens: Sequence[int]) -> None:
        """Append committed tokens, without waiting."""
        self._send(self._commit, tuple(tokens))

    def propose(self) -> Iterator[DraftToken]:
        """Yield the tokens that come in time.

        Raises:
            PredictorError: the predictor failed.
            DecodeAborted: the reply was cancelled.
        """
        if self._late is not None and not self._late.done():
            self._count_late()
            return
        self._send(self._begin)
        while True:
            self._late = self._submit(self._next)
            try:
                drafted = self._late.result(self._limit_s)
            except TimeoutError:
                self._count_late()
                return
            if self._fault is not None:
                raise self._fault
            self._n_late = 0
            if drafted is None:
                return
            yield drafted

    @property
    def _limit_s(self) -> float:
        return max(MIN_LATE_S, LATE_STEPS * (self._plain_step.seconds or 0.0))

    def _count_late(self) -> None:
        self._n_late += 1
        if self._n_late >= MAX_LATE:
            raise PredictorError(
                f"its drafts were late in {MAX_LATE} rounds in a row: the limit is "
                f"{self._limit_s:.1f} s per token"
            )

    # --- in the predictor's thread ---

    def _reset(self, history: Sequence[int]) -> None:
        self._fault = None
        self._leave()
        self._inner.reset(history)

    def _commit(self, tokens: Sequence[int]) -> None:
        self._leave()
        self._inner.commit(tokens)

    def _begin(self) -> None:
        self._leave()
        if self._fault is None:
            self._proposed = iter(self._inner.propose())

    def _next(self) -> DraftToken | None:
        drafted = next(self._proposed, None)
        return None if drafted is None else checked_token(drafted, self._n_vocab)

    def _leave(self) -> None:
        close = getattr(self._proposed, "close", lambda: None)
        self._proposed = iter(())
        close()

    # --- between the threads ---

    def _send(self, call: Callable[..., object], *given: object) -> None:
        """Make a call without waiting for it; `propose` raises its error."""
        self._submit(call, *given).add_done_callback(self._record)

    def _record(self, done: Future[object]) -> None:
        self._fault = self._fault or done.exception()

    def _submit(self, call: Callable[..., T], *given: object) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put(partial(_run, future, call, *given))
        return future


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it refers to the predictor, whose end ends this thread


def _run(future: Future[T], call: Callable[..., T], *given: object) -> None:
    try:
        future.set_result(call(*given))
    except EngineError as error:
        future.set_exception(error)
    except BaseException as error:  # noqa: BLE001  it is the code of somebody else
        message = " ".join(str(error).split())[:200]
        colon = ": " if message else ""
        fault = PredictorError(f"it raised {type(error).__name__}{colon}{message}")
        fault.__cause__ = error
        future.set_exception(fault)


def checked_token(drafted: DraftToken, n_vocab: int) -> DraftToken:
    """The drafted token with its numbers converted to Python's types.

    Raises:
        PredictorError: the token is outside `n_vocab`, the confidence outside 0 to 1, or the
            distribution invalid.
    """
    token, confidence = operator.index(drafted.token), float(drafted.confidence)
    if not 0 <= token < n_vocab:
        raise PredictorError(f"it proposed token {token}: the model has tokens 0 to {n_vocab - 1}")
    if not 0.0 <= confidence <= 1.0:
        raise PredictorError(
            f"it returned the confidence {confidence}: return a number from 0 to 1"
        )
    distribution = drafted.distribution
    if distribution is not None and not _is_distribution(distribution, n_vocab):
        raise PredictorError(
            f"it proposed token {token} with {shown(distribution)}, which is not a probability "
            "distribution"
        )
    return DraftToken(token, confidence, distribution)


def _is_distribution(distribution: Distribution, n_vocab: int) -> bool:
    return bool(
        distribution.tokens.shape == distribution.probs.shape
        and distribution.tokens.size > 0
        and 0 <= distribution.tokens.min() <= distribution.tokens.max() < n_vocab
        and (distribution.probs >= 0.0).all()
        and abs(float(distribution.probs.sum()) - 1.0) < 1e-3
    )
