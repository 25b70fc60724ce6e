"""One predictor under one controller: the draft of each round."""

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import replace

from engine.configuration import ControllerName, SpeculationSettings
from engine.errors import DecodeAborted, EngineError
from engine.sampling.distribution import Distribution
from engine.speculation.controller import Controller, RoundOutcome
from engine.speculation.experience import Experience
from engine.speculation.predictors.base import AsksSources, CatchesUp, DraftToken, Predictor
from engine.speculation.rule import make_controller
from engine.speculation.shadow import Shadow

PLAIN_STEP_EVERY = 256
ROUNDS_BEFORE_PLAIN_STEP = 4
LEAST_PLAIN_STEPS = 3
"""Plain steps of a session from which it is known how much they differ."""


class Drafter:
    """Pulls guesses from the predictor as long as the controller wants another.

    Plain rounds are forced early in a session, and one every `PLAIN_STEP_EVERY` tokens while
    drafting, so that the plain step, to which speculation is compared, stays measured; the
    automatic rule plans its own. It changes no text.
    """

    def __init__(
        self,
        predictor: Predictor | None,
        settings: SpeculationSettings,
        experience: Experience | None = None,
    ) -> None:
        self.predictor = predictor
        self.settings = settings
        self.controller: Controller = make_controller(
            settings,
            predictor.name if predictor is not None else "off",
            Experience() if experience is None else experience,
        )
        self._shadow = Shadow()
        self.sources: tuple[str, ...] = ()
        """Who made each guess of this round; those that are verified are the first."""
        self.fault: str | None = None
        """Why drafting was given up, None while it works."""
        self.laws: tuple[Distribution | None, ...] = ()
        """What each token of the last draft was drawn from (`DraftToken.distribution`)."""
        self._asks_sources = False
        if predictor is not None:
            self._join(predictor)
        self._rounds_drafted = 0
        self._tokens_since_plain = 0
        self._n_plain_steps = 0

    @property
    def source(self) -> str | None:
        """Name of who guessed the last draft, or of the predictor; None when there is none."""
        if self.sources:
            return self.sources[0]
        return None if self.predictor is None else self.predictor.name

    @property
    def length(self) -> int:
        """Tokens wanted for the coming round."""
        if self.predictor is None or self._plain_step_is_due():
            return 0
        return self.controller.length

    @property
    def reason(self) -> str:
        """Why the controller chose its length."""
        return self.controller.reason if self.predictor is not None else "speculation is off"

    def reset(self, line: Tokens[int], *, n_plain_steps: int) -> None:
        """Start a reply on a line of tokens; a predictor that fails at it is switched off."""
        self._n_plain_steps = n_plain_steps
        self._rounds_drafted = 0
        self._tokens_since_plain = 0
        if self.predictor is not None:
            self._tell(self.predictor, self.predictor.reset, line)

    def draft(self, n_max: int) -> tuple[int, ...]:
        """Give at most `n_max` tokens; a predictor that fails is switched off, the reply goes on.

        Raises:
            DecodeAborted: the reply was cancelled while the draft model decoded.
        """
        guesses = self._pulled(n_max)
        own = "" if self.predictor is None else self.predictor.name
        self.sources = tuple(guess.source or own for guess in guesses)
        laws = tuple(guess.distribution for guess in guesses)
        n_verified = self.controller.n_worth_verifying(guesses)
        if any(law is not None for law in laws):
            # Dropping a drawn token for its own probability would bend the law of the text.
            n_verified = len(guesses)
        self.laws = laws[:n_verified]
        self._shadow.follow(guesses, is_verified=n_verified > 0)
        return tuple(guess.token for guess in guesses[:n_verified])

    def _pulled(self, n_max: int) -> list[DraftToken]:
        guesses: list[DraftToken] = []
        if self.predictor is None or n_max <= 0 or self._plain_step_is_due():
            return guesses
        if not self._asks_sources and not self.controller.wants_source(self.predictor.name):
            return guesses
        try:
            for guess in self.predictor.propose():
                guesses.append(guess)
                if len(guesses) >= n_max or not self.controller.wants_another(guesses):
                    break
        except DecodeAborted:
            raise
        except EngineError as error:
            self._give_up(self.predictor, error)
            return []
        return guesses

    def _tell(
        self, predictor: Predictor, tell: Callable[[Tokens[int]], None], tokens: Tokens[int]
    ) -> None:
        try:
            tell(tokens)
        except DecodeAborted:
            raise
        except EngineError as error:
            self._give_up(predictor, error)

    def _join(self, predictor: Predictor) -> None:
        try:
            self._asks_sources = _join(predictor, self.controller)
        except EngineError as error:
            self._give_up(predictor, error)

    def _give_up(self, predictor: Predictor, error: EngineError) -> None:
        self.fault = f"the {predictor.name} predictor failed and is off: {error}"
        self.predictor = None

    def observe(self, outcome: RoundOutcome, committed: Tokens[int]) -> None:
        """Take the outcome of the round and the tokens that it committed."""
        self._rounds_drafted += bool(outcome.n_drafted)
        if outcome.n_drafted:
            self._tokens_since_plain += outcome.n_emitted
        elif outcome.verify_s is not None:
            self._tokens_since_plain = 0
            self._n_plain_steps += 1
        examined = self._shadow.examine(committed)
        if self.predictor is not None:
            if self.sources or examined:
                outcome = replace(outcome, n_pulled=len(self.sources), examined=examined)
            self.controller.observe(outcome)
            self._tell(self.predictor, self.predictor.commit, committed)

    def _plain_step_is_due(self) -> bool:
        if self.settings.controller is ControllerName.AUTO:
            return False
        if self._tokens_since_plain >= PLAIN_STEP_EVERY:
            return True
        is_unknown = self._n_plain_steps < LEAST_PLAIN_STEPS
        return is_unknown and self._rounds_drafted >= ROUNDS_BEFORE_PLAIN_STEP


def _join(predictor: object, controller: Controller) -> bool:
    """Let a predictor ask the controller; tells whether it asks for each of its sources."""
    if isinstance(predictor, CatchesUp):
        predictor.limit_catch_up(controller.affords_catch_up)
    if not isinstance(predictor, AsksSources):
        return False
    predictor.gate(controller.wants_source)
    return predictor.asks_sources
