"""Validates the proposals of a predictor and limits its time."""

import operator
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TypeVar

from engine.errors import EngineError, PredictorError, shown
from engine.grammar.mask import GrammarMask
from engine.sampling import Distribution
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.base import DraftToken, Predictor

LATE_STEPS = 8.0
"""Plain steps allowed per guess. The token costs one without a draft; a draft model that catches
up needs two of its own steps for a first guess."""

MIN_LATE_S = 0.1
"""Drafting faster than this is never late: clock ticks of 10 ms and other programs can make any
code this slow occasionally."""

ROUNDS_IN_A_ROW = 3
"""Late rounds until a predictor fails; a single one may be a cold cache or a long catch-up."""


class LatencyBudget:
    """Compares each round's drafting time with the plain step, once that is known."""

    def __init__(self, plain_step: PlainStep) -> None:
        self._plain_step = plain_step
        self.start()

    def start(self) -> None:
        """Reset for a new reply."""
        self._n_late = 0
        self._begin_round()

    def ask(self) -> None:
        """Record that the predictor is asked in this round."""
        self._is_asked = True

    def end_round(self) -> None:
        """Check the round's time, unless the predictor was not asked.

        Raises:
            PredictorError: this round and those before it were late.
        """
        elapsed_s, allowed_s, is_asked = self.elapsed_s, self._allowed_s(), self._is_asked
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
                f"{ROUNDS_IN_A_ROW} drafts in a row were late: the last one took "
                f"{elapsed_s * 1e3:.0f} ms, but a token without drafts takes "
                f"{step_s * 1e3:.0f} ms"
            )

    def _allowed_s(self) -> float | None:
        step_s = self._plain_step.seconds
        if step_s is None:
            return None
        return max(MIN_LATE_S, LATE_STEPS * step_s * max(1, self.n_guesses))

    def _begin_round(self) -> None:
        self.elapsed_s = 0.0
        """Time of the predictor's calls in this round."""
        self.n_guesses = 0
        """Guesses made in this round."""
        self._is_asked = False


T = TypeVar("T")


class GuardedPredictor:
    """Passes on a predictor's valid proposals.

    Raises a `PredictorError` for an exception of the predictor, a token outside the vocabulary, an
    invalid confidence or distribution, and repeated lateness. A draft ends before the first token
    that the reply's grammar forbids: it would be refuted.
    """

    def __init__(
        self,
        inner: Predictor,
        n_vocab: int,
        plain_step: PlainStep,
        *,
        mask: GrammarMask | None = None,
    ) -> None:
        self.name = inner.name
        self._mask = mask
        self._line: list[int] = []
        """Committed tokens for the grammar; empty without one."""
        self._inner = inner
        self._n_vocab = n_vocab
        self._latency = LatencyBudget(plain_step)
        self._fault_on_leaving: EngineError | None = None

    def reset(self, history: Sequence[int]) -> None:
        """Start a reply.

        Raises:
            PredictorError: the predictor raised.
        """
        self._fault_on_leaving = None
        self._latency.start()
        self._line = [] if self._mask is None else list(history)
        self._call(self._inner.reset, tuple(history))

    def commit(self, tokens: Sequence[int]) -> None:
        """Pass on committed tokens and check the round's time.

        Raises:
            PredictorError: the predictor raised, here or on closing its generator, or was late.
        """
        if self._fault_on_leaving is not None:
            raise self._fault_on_leaving
        if self._mask is not None:
            self._line.extend(tokens)
        self._call(self._inner.commit, tuple(tokens))
        self._latency.end_round()

    def propose(self) -> Iterator[DraftToken]:
        """Yield the valid guesses.

        Raises:
            PredictorError: the predictor raised or made an invalid proposal.
            DecodeAborted: the reply was cancelled.
        """
        self._latency.ask()
        guesses = self._call(lambda: iter(self._inner.propose()))
        line = list(self._line)
        try:
            while (guess := self._call(self._next, guesses)) is not None:
                self._latency.n_guesses += 1
                if self._mask is not None:
                    if not self._mask.allows(line, guess.token):
                        return
                    line.append(guess.token)
                yield guess
        finally:
            self._leave(guesses)

    def close(self) -> None:
        """Close the predictor.

        Raises:
            PredictorError: the predictor raised.
        """
        self._call(self._inner.close)

    def _next(self, guesses: Iterator[DraftToken]) -> DraftToken | None:
        guess = next(guesses, None)
        return None if guess is None else checked_guess(guess, self._n_vocab)

    def _leave(self, guesses: Iterator[DraftToken]) -> None:
        """Close an abandoned generator and save its error for `commit`."""
        leave: Callable[[], None] | None = getattr(guesses, "close", None)
        if leave is None:
            return
        try:
            self._call(leave)
        except EngineError as error:
            self._fault_on_leaving = error

    def _call(self, function: Callable[..., T], *given: object) -> T:
        began = monotonic()
        try:
            return function(*given)
        except EngineError:
            raise
        except Exception as error:  # a predictor may be third-party code
            message = " ".join(str(error).split())[:200]
            colon = ": " if message else ""
            raise PredictorError(f"it raised {type(error).__name__}{colon}{message}") from error
        finally:
            self._latency.elapsed_s += monotonic() - began


def checked_guess(guess: DraftToken, n_vocab: int) -> DraftToken:
    """The guess with its numbers converted to Python's types.

    Raises:
        PredictorError: the token is outside `n_vocab`, the confidence outside 0 to 1, or the
            distribution invalid.
    """
    token, confidence, drawn_from = guess.token, guess.confidence, guess.distribution
    if type(token) is not int or type(confidence) is not float:
        token, confidence = operator.index(token), float(confidence)
        guess = DraftToken(token, confidence, drawn_from)
    if not 0 <= token < n_vocab:
        raise PredictorError(f"it proposed token {token}: the model has tokens 0 to {n_vocab - 1}")
    if not 0.0 <= confidence <= 1.0:
        raise PredictorError(
            f"it returned the confidence {confidence}: return a number from 0 to 1"
        )
    if drawn_from is not None and not _is_distribution(drawn_from, n_vocab):
        raise PredictorError(
            f"it proposed token {token} with {shown(drawn_from)}, which is not a probability "
            "distribution"
        )
    return guess


def _is_distribution(distribution: Distribution, n_vocab: int) -> bool:
    return bool(
        distribution.tokens.shape == distribution.probs.shape
        and distribution.tokens.size > 0
        and 0 <= distribution.tokens.min() <= distribution.tokens.max() < n_vocab
        and (distribution.probs >= 0.0).all()
        and abs(float(distribution.probs.sum()) - 1.0) < 1e-3
    )
