"""The boundary between the engine and a predictor that may do anything."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from engine.errors import EngineError, PredictorError
from engine.sampling.distribution import Distribution
from engine.speculation.cost import PlainStep
from engine.speculation.predictors.base import AsksSources, CatchesUp, DraftToken, Predictor
from engine.speculation.predictors.lateness import Lateness

T = TypeVar("T")


class GuardedPredictor:
    """Passes on what a predictor proposes, as long as that is a draft.

    Whatever the predictor raises, a token that the vocabulary does not have, a confidence that is
    none, and answers that come late again and again are a `PredictorError` that names the fault.
    The target decodes what is proposed, so nothing reaches it unchecked.
    """

    def __init__(self, inner: Predictor, *, name: str, n_vocab: int, plain_step: PlainStep) -> None:
        self.name = name
        self._inner = inner
        self._n_vocab = n_vocab
        self._lateness = Lateness(plain_step)
        self._asked_at: float | None = None
        self._fault_on_leaving: EngineError | None = None

    @property
    def busy_s(self) -> float | None:
        """Seconds that the running call has taken so far, None between calls; from any thread."""
        asked_at = self._asked_at
        return None if asked_at is None else monotonic() - asked_at

    def reset(self, history: Sequence[int]) -> None:
        """Start a reply.

        Raises:
            PredictorError: the predictor raised.
        """
        self._fault_on_leaving = None
        self._lateness.start()
        self._call("reset", lambda: self._inner.reset(tuple(history)))

    def commit(self, tokens: Sequence[int]) -> None:
        """Tell what became part of the line, and judge how long the round took.

        Raises:
            PredictorError: the predictor raised, here or when it was left, or was late too often.
        """
        if self._fault_on_leaving is not None:
            raise self._fault_on_leaving
        self._call("commit", lambda: self._inner.commit(tuple(tokens)))
        self._lateness.end_round()

    def propose(self) -> Iterator[DraftToken]:
        """Give the guesses that are ones.

        Raises:
            PredictorError: the predictor raised, or proposed what is no token of the model.
            DecodeAborted: the reply was cancelled.
        """
        self._lateness.ask()
        guesses = self._call("propose", lambda: iter(self._inner.propose()))
        try:
            while (guess := self._call("propose", lambda: next(guesses, None))) is not None:
                checked = checked_guess(guess, self._n_vocab)
                self._lateness.count_guess()
                yield checked
        finally:
            self._leave(guesses)

    @property
    def asks_sources(self) -> bool:
        """Whether it asks several sources, each by its own leave."""
        return isinstance(self._inner, AsksSources)

    def gate(self, may_ask: Callable[[str], bool]) -> None:
        """Take who says whether a source is asked.

        Raises:
            PredictorError: the predictor raised.
        """
        inner = self._inner
        if isinstance(inner, AsksSources):
            self._call("gate", lambda: inner.gate(may_ask))

    def limit_catch_up(self, affords: Callable[[int], bool]) -> None:
        """Take who says whether a source that fell behind takes in all that it missed.

        Raises:
            PredictorError: the predictor raised.
        """
        inner = self._inner
        if isinstance(inner, CatchesUp):
            self._call("limit_catch_up", lambda: inner.limit_catch_up(affords))

    def close(self) -> None:
        """Let the predictor go.

        Raises:
            PredictorError: the predictor raised.
        """
        self._call("close", self._inner.close)

    def _leave(self, guesses: Iterator[DraftToken]) -> None:
        """End a half-read generator here: what it raises is the fault of the round, not lost."""
        leave: Callable[[], None] | None = getattr(guesses, "close", None)
        if leave is None:
            return
        try:
            self._call("propose", leave)
        except EngineError as error:
            self._fault_on_leaving = error

    def _call(self, what: str, function: Callable[[], T]) -> T:
        self._asked_at = asked_at = monotonic()
        try:
            return function()
        except (EngineError, KeyboardInterrupt):
            raise
        except BaseException as error:  # code of others may raise anything, SystemExit too
            raise _fault(what, error) from error
        finally:
            self._asked_at = None
            self._lateness.spent(monotonic() - asked_at)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Make whatever a predictor raises a `PredictorError`; its errors of the engine pass as such.

    Raises:
        PredictorError: the body raised something of its own.
    """
    try:
        yield
    except (EngineError, KeyboardInterrupt):
        raise
    except BaseException as error:  # code of others may raise anything, SystemExit too
        raise _fault(what, error) from error


def _fault(what: str, error: BaseException) -> PredictorError:
    said = _said(error)
    return PredictorError(f"{what} raised {type(error).__name__}{': ' if said else ''}{said}")


def _said(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:200]
    except Exception as another:  # noqa: BLE001  an exception of others may fail to be written too
        return f"its message raised {type(another).__name__}"


def checked_guess(guess: object, n_vocab: int) -> DraftToken:
    """Give the guess with plain numbers in it.

    Raises:
        PredictorError: it is no `DraftToken`, its token is none of `n_vocab`, or its confidence is
            no number from 0 to 1.
    """
    if not isinstance(guess, DraftToken):
        raise PredictorError(f"it proposed {_shown(guess)}, which is no DraftToken")
    if _is_plain(guess) and guess.token < n_vocab:
        return guess
    token = _token(guess.token)
    if not 0 <= token < n_vocab:
        raise PredictorError(f"it proposed token {token}: the model has tokens 0 to {n_vocab - 1}")
    confidence = _confidence(guess.confidence)
    law, source = guess.distribution, guess.source
    if law is not None and not _is_law(law, n_vocab):
        raise PredictorError("it proposed a token with a distribution that is none")
    if source is not None and not isinstance(source, str):
        raise PredictorError(f"it named {_shown(source)} as the source of a token: give a name")
    return DraftToken(token, confidence, law, source)


def _is_plain(guess: DraftToken) -> bool:
    """Whether nothing of a guess needs a closer look but the size of its token: most need none."""
    return (
        type(guess.token) is int
        and guess.token >= 0
        and type(guess.confidence) is float
        and 0.0 <= guess.confidence <= 1.0
        and guess.distribution is None
        and (guess.source is None or type(guess.source) is str)
    )


def _token(token: object) -> int:
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise PredictorError(f"it proposed {_shown(token)} as a token: tokens are whole numbers")
    with translated("a proposed token"):
        return operator.index(token)


def _confidence(confidence: object) -> float:
    if isinstance(confidence, bool) or not hasattr(confidence, "__float__"):
        raise PredictorError(f"it gave {_shown(confidence)} as its confidence: give 0 to 1")
    with translated("a confidence"):
        number = float(confidence)
    if math.isnan(number) or not 0.0 <= number <= 1.0:
        raise PredictorError(f"it gave {number} as its confidence: give a number from 0 to 1")
    return number


def _is_law(law: object, n_vocab: int) -> bool:
    if not isinstance(law, Distribution):
        return False
    with translated("a distribution"):
        return bool(
            law.tokens.shape == law.probs.shape
            and law.tokens.size > 0
            and 0 <= law.tokens.min() <= law.tokens.max() < n_vocab
            and (law.probs >= 0.0).all()
            and abs(float(law.probs.sum()) - 1.0) < 1e-3
        )


def _shown(value: object) -> str:
    with translated("a proposal"):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
