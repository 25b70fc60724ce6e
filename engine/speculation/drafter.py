"""The draft of each round: which source guesses, how many guesses are pulled and verified."""

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
"""Plain steps of a session from which it is known how much they differ."""


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
    """What one source guessed for a round; empty in a plain one."""

    tokens: tuple[int, ...] = ()
    """Those that are verified."""
    laws: tuple[Distribution | None, ...] = ()
    """What each of them was drawn from (`DraftToken.distribution`)."""
    n_drafted: int = 0
    """Guesses that were made; the verified ones are the first of them."""
    source: str | None = None
    """Who made them, None where nobody guessed anything."""


class Examiner:
    """Compares one draft with what the line becomes, until the line parts from it.

    A guess is examined when the line reaches it, whether a batch verified it or a plain step came
    by, so a source that is off stays known without being paid for. A draft that was verified takes
    the place of the one followed; one that was not waits for its turn, so that outcomes do not
    overlap.
    """

    def __init__(self) -> None:
        self._guesses: Sequence[DraftToken] = ()
        self._source = ""
        self._n_reached = 0

    def follow(self, source: str, guesses: Sequence[DraftToken], *, is_verified: bool) -> None:
        """Take the draft of a round."""
        if is_verified or self._n_reached >= len(self._guesses):
            self._guesses, self._source, self._n_reached = guesses, source, 0

    def examine(self, committed: Sequence[int]) -> tuple[Examined, ...]:
        """The guesses that the committed tokens reached, up to the first wrong one."""
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
    """Lets the first source that the controller wants, and that has something to say, guess.

    Every draft is of one source, pulled one guess at a time as long as the controller wants
    another. Plain rounds are forced early in a session, and one every `PLAIN_STEP_EVERY` tokens
    while drafting, so that the plain step, to which speculation is compared, stays measured; the
    automatic rule plans its own. None of it changes the text.
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
        """Why nobody drafts as the settings ask, None where somebody does."""
        self.controller = controller
        self.fault: str | None = None
        """Why drafting was given up, None while it works."""
        self._sources = tuple(sources)
        self._examiner = Examiner()
        self._rounds_drafted = 0
        self._tokens_since_plain = 0
        self._n_plain_steps = 0

    @property
    def predictor(self) -> PredictorName:
        """Who drafted at the start of the reply."""
        return self.settings.predictor if self.note is None else PredictorName.OFF

    @property
    def is_on(self) -> bool:
        """Whether anybody may be asked for a draft."""
        return bool(self._sources)

    @property
    def length(self) -> int:
        """Tokens wanted for the coming round."""
        if not self.is_on or self._plain_step_is_due():
            return 0
        return self.controller.length

    @property
    def reason(self) -> str:
        """Why the controller chose its length."""
        return self.controller.reason if self.is_on else "speculation is off"

    def reset(self, line: Tokens[int], *, n_plain_steps: int) -> None:
        """Start a reply on a line of tokens; a predictor that fails at it is switched off."""
        self._n_plain_steps = n_plain_steps
        self._rounds_drafted = 0
        self._tokens_since_plain = 0
        self._tell(lambda source: source.reset(line))

    def draft(self, n_max: int) -> Draft:
        """A draft of at most `n_max` tokens; one whose source fails is empty, the reply goes on.

        Raises:
            DecodeAborted: the reply was cancelled while the draft model decoded.
        """
        source, guesses = self._pulled(n_max)
        if not guesses:
            return Draft()
        laws = tuple(guess.distribution for guess in guesses)
        n_verified = self.controller.n_to_verify(guesses)
        if any(law is not None for law in laws):
            # Dropping a drawn token for its own probability would bend the law of the text.
            n_verified = len(guesses)
        self._examiner.follow(source, guesses, is_verified=n_verified > 0)
        tokens = tuple(guess.token for guess in guesses[:n_verified])
        return Draft(tokens, laws[:n_verified], len(guesses), source)

    def observe(self, done: RoundFinished, committed: Tokens[int]) -> None:
        """Take a round that was made, and the tokens that it committed."""
        self._rounds_drafted += bool(done.n_verified)
        if done.n_verified:
            self._tokens_since_plain += done.n_emitted
        else:
            self._tokens_since_plain = 0
            self._n_plain_steps += 1
        if self.is_on:
            self.controller.observe(done, self._examiner.examine(committed))
            self._tell(lambda source: source.commit(committed))

    def _pulled(self, n_max: int) -> tuple[str, list[DraftToken]]:
        """The guesses of the first source that is wanted and not silent, with its name."""
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

    def _tell(self, tell: Callable[[Predictor], None]) -> None:
        for source in self._sources:
            try:
                tell(source)
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
