"""The draft of each round: its source, and how many guesses are pulled and verified."""

from collections.abc import Callable, Sequence
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.configuration import ControllerName, PredictorName, SpeculationSettings, check_settings
from engine.errors import DecodeAborted, EngineError
from engine.events import RoundFinished
from engine.sampling import Distribution
from engine.speculation.acceptance import Examined
from engine.speculation.auto import AutoController
from engine.speculation.controller import Controller, FixedController
from engine.speculation.predictors.base import DraftToken, Predictor

PLAIN_STEP_EVERY = 256
ROUNDS_BEFORE_PLAIN_STEP = 4
MIN_PLAIN_STEPS = 3
"""Plain steps of a session needed to measure their spread."""


def make_controller(settings: SpeculationSettings, auto: AutoController) -> Controller:
    """The controller of the settings, at the start of a reply; `auto` is the session's.

    Raises:
        PresetError: a setting outside its bounds.
    """
    check_settings(settings)
    match settings.controller:
        case ControllerName.FIXED:
            return FixedController(settings.n_draft)
        case ControllerName.AUTO:
            auto.start_reply()
            return auto


@dataclass(frozen=True, slots=True)
class Draft:
    """One source's guesses for a round; empty in a plain round."""

    tokens: tuple[int, ...] = ()
    """The guesses to verify."""
    distributions: tuple[Distribution | None, ...] = ()
    """For each token, the distribution it was drawn from (`DraftToken.distribution`)."""
    n_drafted: int = 0
    """Guesses made; `tokens` are the first of them."""
    source: str | None = None
    """Name of the predictor; None if nothing was guessed."""


class Examiner:
    """Compares one draft with the committed tokens up to the first difference.

    Unverified guesses are compared too, so that a source's acceptance stays known while it is off.
    A verified draft replaces the current one; an unverified draft is dropped while another is
    compared, so that outcomes do not overlap.
    """

    def __init__(self) -> None:
        self._guesses: Sequence[DraftToken] = ()
        self._source = ""
        self._n_reached = 0

    def follow(self, source: str, guesses: Sequence[DraftToken], *, is_verified: bool) -> None:
        """Compare this draft from now on, unless an earlier one has precedence."""
        if is_verified or self._n_reached >= len(self._guesses):
            self._guesses, self._source, self._n_reached = guesses, source, 0

    def examine(self, committed: Sequence[int]) -> tuple[Examined, ...]:
        """Outcomes of the guesses at the committed tokens, up to the first wrong one."""
        examined: list[Examined] = []
        for token in committed:
            if self._n_reached >= len(self._guesses):
                break
            guess = self._guesses[self._n_reached]
            is_right = guess.token == token
            examined.append(Examined(self._source, guess.confidence, is_right))
            self._n_reached = self._n_reached + 1 if is_right else len(self._guesses)
        return tuple(examined)


class Drafter:
    """Drafts with the first source that the controller wants and that proposes something.

    Guesses are pulled one at a time while the controller wants another. To measure the plain step,
    plain rounds are forced early in a session and every `PLAIN_STEP_EVERY` tokens while drafting;
    the auto controller plans its own. Drafting never changes the text.
    """

    def __init__(
        self,
        sources: Sequence[Predictor],
        controller: Controller,
        settings: SpeculationSettings,
        *,
        note: str | None = None,
    ) -> None:
        self.settings = settings
        self.note = note
        """Why the requested predictor is not used; None if it is."""
        self.controller = controller
        self.fault: str | None = None
        """Why drafting was switched off; None while it works."""
        self._sources = tuple(sources)
        self._examiner = Examiner()
        self._rounds_drafted = 0
        self._tokens_since_plain = 0
        self._n_plain_steps = 0

    @property
    def predictor(self) -> PredictorName:
        """The predictor at the start of the reply."""
        return self.settings.predictor if self.note is None else PredictorName.OFF

    @property
    def is_on(self) -> bool:
        """Whether there is a predictor to ask."""
        return bool(self._sources)

    @property
    def length(self) -> int:
        """Expected draft length of the next round."""
        if not self.is_on or self._plain_step_is_due():
            return 0
        return self.controller.length

    @property
    def reason(self) -> str:
        """The controller's reason for its length."""
        return self.controller.reason if self.is_on else "speculation is off"

    def reset(self, line: Tokens[int], *, n_plain_steps: int) -> None:
        """Start a reply after the tokens `line`; a predictor that fails is switched off."""
        self._n_plain_steps = n_plain_steps
        self._rounds_drafted = 0
        self._tokens_since_plain = 0
        self._call_sources(lambda source: source.reset(line))

    def draft(self, n_max: int) -> Draft:
        """A draft of at most `n_max` tokens; empty if its source fails.

        Raises:
            DecodeAborted: the reply was cancelled while the draft model decoded.
        """
        source, guesses = self._pulled(n_max)
        if not guesses:
            return Draft()
        distributions = tuple(guess.distribution for guess in guesses)
        n_verified = self.controller.n_to_verify(guesses)
        if any(distribution is not None for distribution in distributions):
            # Dropping a drawn token for its own probability would bias the text's distribution.
            n_verified = len(guesses)
        self._examiner.follow(source, guesses, is_verified=n_verified > 0)
        tokens = tuple(guess.token for guess in guesses[:n_verified])
        return Draft(tokens, distributions[:n_verified], len(guesses), source)

    def observe(self, done: RoundFinished, committed: Tokens[int]) -> None:
        """Record a finished round and the tokens that it committed."""
        self._rounds_drafted += bool(done.n_verified)
        if done.n_verified:
            self._tokens_since_plain += done.n_emitted
        else:
            self._tokens_since_plain = 0
            self._n_plain_steps += 1
        if self.is_on:
            self.controller.observe(done, self._examiner.examine(committed))
            self._call_sources(lambda source: source.commit(committed))

    def _pulled(self, n_max: int) -> tuple[str, list[DraftToken]]:
        """Name and guesses of the first wanted source that proposes something."""
        guesses: list[DraftToken] = []
        if n_max <= 0 or self._plain_step_is_due():
            return "", guesses
        for source in self._sources:
            if not self.controller.wants(source.name):
                continue
            try:
                for guess in source.propose():
                    guesses.append(guess)
                    if len(guesses) >= n_max or not self.controller.wants_another(guesses):
                        break
            except DecodeAborted:
                raise
            except EngineError as error:
                self._give_up(error)
                return "", []
            if guesses:
                return source.name, guesses
        return "", guesses

    def _call_sources(self, call: Callable[[Predictor], None]) -> None:
        for source in self._sources:
            try:
                call(source)
            except DecodeAborted:
                raise
            except EngineError as error:
                self._give_up(error)
                return

    def _give_up(self, error: EngineError) -> None:
        self.fault = f"the {self.settings.predictor} predictor failed and was switched off: {error}"
        self._sources = ()

    def _plain_step_is_due(self) -> bool:
        if self.settings.controller is ControllerName.AUTO:
            return False
        if self._tokens_since_plain >= PLAIN_STEP_EVERY:
            return True
        is_unknown = self._n_plain_steps < MIN_PLAIN_STEPS
        return is_unknown and self._rounds_drafted >= ROUNDS_BEFORE_PLAIN_STEP
