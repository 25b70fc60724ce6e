"""The boundary between the engine and a predictor that may do anything, or take too long."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from engine.errors import EngineError, PredictorError, shown
from engine.grammar.mask import GrammarMask
from engine.images import behind_images
from engine.sampling import Distribution
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.base import DraftToken, Predictor

LATE_STEPS = 8.0
"""Plain steps that a guess may take. One is what the token costs without a draft; a draft model
that has to catch up needs two of its own steps for a first guess."""

LATE_AT_LEAST_S = 0.1
"""A round that was faster than this is never late: the system's clock ticks of 10 ms and other
programs make any code so slow now and then."""

ROUNDS_IN_A_ROW = 3
"""One late round is a cold cache or a long catch-up."""


class LatencyBudget:
    """Compares the time that each round's guesses took to the plain step.

    A judgement needs a measured plain step; before there is one nothing is late.
    """

    def __init__(self, plain_step: PlainStep) -> None:
        self._plain_step = plain_step
        self.start()

    def start(self) -> None:
        """Forget the rounds so far; a reply begins."""
        self._n_late = 0
        self._begin_round()

    def spent(self, elapsed_s: float) -> None:
        """Add the time of one call."""
        self._elapsed_s += elapsed_s

    def ask(self) -> None:
        """Note that the predictor is asked for a draft in this round."""
        self._is_asked = True

    def count_guess(self) -> None:
        """Add a guess that was made."""
        self._n_guesses += 1

    def end_round(self) -> None:
        """Judge the round that ends; one in which nothing was asked says nothing.

        Raises:
            PredictorError: it was late, and so were the ones before it.
        """
        elapsed_s, allowed_s, is_asked = self._elapsed_s, self._allowed_s(), self._is_asked
        self._begin_round()
        if not is_asked:
            return
        if allowed_s is None or elapsed_s <= allowed_s:
            self._n_late = 0
            return
        self._n_late += 1
        if self._n_late >= ROUNDS_IN_A_ROW:
            step_s = self._plain_step.seconds or 0.0
            raise PredictorError(
                f"it answers late, {ROUNDS_IN_A_ROW} drafts in a row: the last one took "
                f"{elapsed_s * 1e3:.0f} ms, where a plain step takes {step_s * 1e3:.0f} ms"
            )

    def _allowed_s(self) -> float | None:
        step_s = self._plain_step.seconds
        if step_s is None:
            return None
        return max(LATE_AT_LEAST_S, LATE_STEPS * step_s * max(1, self._n_guesses))

    def _begin_round(self) -> None:
        self._elapsed_s = 0.0
        self._n_guesses = 0
        self._is_asked = False


T = TypeVar("T")


class GuardedPredictor:
    """Passes on what a predictor proposes, as long as that is a draft.

    Whatever the predictor raises, a token that the vocabulary does not have, a confidence that is
    none, and answers that come late again and again are a `PredictorError` that names the fault.
    The target decodes what is proposed, so nothing reaches it unchecked. A draft ends in front of
    the first token that the grammar of the reply forbids: it could only be refuted.
    """

    def __init__(
        self,
        inner: Predictor,
        *,
        name: str,
        n_vocab: int,
        plain_step: PlainStep,
        mask: GrammarMask | None = None,
        is_custom: bool = True,
    ) -> None:
        self.name = name
        self._is_custom = is_custom
        self._mask = mask
        self._line: list[int] = []
        """What the grammar is asked about; empty without one."""
        self._inner = inner
        self._n_vocab = n_vocab
        self._latency = LatencyBudget(plain_step)
        self._asked_at: float | None = None
        self._fault_on_leaving: EngineError | None = None

    @property
    def busy_s(self) -> float | None:
        """Seconds that the running call has taken so far, None between calls; from any thread."""
        asked_at = self._asked_at
        return None if asked_at is None else monotonic() - asked_at

    def reset(self, history: Sequence[int]) -> None:
        """Start a reply; a plugin gets the line from behind its last image on.

        Raises:
            PredictorError: the predictor raised.
        """
        self._fault_on_leaving = None
        self._latency.start()
        self._line = [] if self._mask is None else list(history)
        start = behind_images(history) if self._is_custom else 0
        self._call("reset", lambda: self._inner.reset(tuple(history[start:])))

    def commit(self, tokens: Sequence[int]) -> None:
        """Pass on what became part of the line, and judge how long the round took.

        Raises:
            PredictorError: the predictor raised, here or when it was left, or was late too often.
        """
        if self._fault_on_leaving is not None:
            raise self._fault_on_leaving
        if self._mask is not None:
            self._line.extend(tokens)
        self._call("commit", lambda: self._inner.commit(tuple(tokens)))
        self._latency.end_round()

    def propose(self) -> Iterator[DraftToken]:
        """The guesses that are ones.

        Raises:
            PredictorError: the predictor raised, or proposed what is no token of the model.
            DecodeAborted: the reply was cancelled.
        """
        self._latency.ask()
        guesses = self._call("propose", lambda: iter(self._inner.propose()))
        line = list(self._line)
        try:
            while (guess := self._call("propose", lambda: next(guesses, None))) is not None:
                checked = checked_guess(guess, self._n_vocab)
                self._latency.count_guess()
                if self._mask is not None:
                    if not self._mask.allows(line, checked.token):
                        return
                    line.append(checked.token)
                yield checked
        finally:
            self._leave(guesses)

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
            self._latency.spent(monotonic() - asked_at)


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
    """The guess with plain numbers in it.

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
    law = guess.distribution
    if law is not None and not _is_law(law, n_vocab):
        raise PredictorError("it proposed a token with a distribution that is none")
    return DraftToken(token, confidence, law)


def _is_plain(guess: DraftToken) -> bool:
    """Whether nothing of a guess needs a closer look but the size of its token: most need none."""
    return (
        type(guess.token) is int
        and guess.token >= 0
        and type(guess.confidence) is float
        and 0.0 <= guess.confidence <= 1.0
        and guess.distribution is None
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
        return shown(value)
