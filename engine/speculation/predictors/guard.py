"""The boundary between the engine and a predictor that may do anything, or take too long."""

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

    def ask(self) -> None:
        """Note that the predictor is asked for a draft in this round."""
        self._is_asked = True

    def end_round(self) -> None:
        """Judge the round that ends; one in which nothing was asked says nothing.

        Raises:
            PredictorError: it was late, and so were the ones before it.
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
        return max(LATE_AT_LEAST_S, LATE_STEPS * step_s * max(1, self.n_guesses))

    def _begin_round(self) -> None:
        self.elapsed_s = 0.0
        """Time of the calls in this round."""
        self.n_guesses = 0
        """Guesses that were made in this round."""
        self._is_asked = False


T = TypeVar("T")


class GuardedPredictor:
    """Passes on what a predictor proposes, as long as that is a draft.

    An exception of the predictor, a token that the vocabulary does not have, a confidence that is
    none, and answers that come late again and again are a `PredictorError` that names the fault.
    The target decodes what is proposed, so nothing reaches it unchecked. A draft ends in front of
    the first token that the grammar of the reply forbids: it could only be refuted.
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
        """What the grammar is asked about; empty without one."""
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
        """Pass on what became part of the line, and judge how long the round took.

        Raises:
            PredictorError: the predictor raised, here or when it was left, or was late too often.
        """
        if self._fault_on_leaving is not None:
            raise self._fault_on_leaving
        if self._mask is not None:
            self._line.extend(tokens)
        self._call(self._inner.commit, tuple(tokens))
        self._latency.end_round()

    def propose(self) -> Iterator[DraftToken]:
        """The guesses that are ones.

        Raises:
            PredictorError: the predictor raised, or proposed what is no token of the model.
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
        """Let the predictor go.

        Raises:
            PredictorError: the predictor raised.
        """
        self._call(self._inner.close)

    def _next(self, guesses: Iterator[DraftToken]) -> DraftToken | None:
        guess = next(guesses, None)
        return None if guess is None else checked_guess(guess, self._n_vocab)

    def _leave(self, guesses: Iterator[DraftToken]) -> None:
        """End a half-read generator here: what it raises is the fault of the round, not lost."""
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
        except Exception as error:  # a predictor may be anybody's code
            message = " ".join(str(error).split())[:200]
            colon = ": " if message else ""
            raise PredictorError(f"it raised {type(error).__name__}{colon}{message}") from error
        finally:
            self._latency.elapsed_s += monotonic() - began


def checked_guess(guess: DraftToken, n_vocab: int) -> DraftToken:
    """The guess with plain numbers in it.

    Raises:
        PredictorError: its token is none of `n_vocab`, its confidence no number from 0 to 1, or its
            distribution none.
    """
    token, confidence, law = guess.token, guess.confidence, guess.distribution
    if type(token) is not int or type(confidence) is not float:
        token, confidence = operator.index(token), float(confidence)
        guess = DraftToken(token, confidence, law)
    if not 0 <= token < n_vocab:
        raise PredictorError(f"it proposed token {token}: the model has tokens 0 to {n_vocab - 1}")
    if not 0.0 <= confidence <= 1.0:
        raise PredictorError(
            f"it returned the confidence {confidence}: return a number from 0 to 1"
        )
    if law is not None and not _is_distribution(law, n_vocab):
        raise PredictorError(
            f"it proposed token {token} with {shown(law)}, which is not a probability distribution"
        )
    return guess


def _is_distribution(law: Distribution, n_vocab: int) -> bool:
    return bool(
        law.tokens.shape == law.probs.shape
        and law.tokens.size > 0
        and 0 <= law.tokens.min() <= law.tokens.max() < n_vocab
        and (law.probs >= 0.0).all()
        and abs(float(law.probs.sum()) - 1.0) < 1e-3
    )
