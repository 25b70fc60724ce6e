"""The draft of each round: predictors, the controller that plans them, unverified guesses."""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Sequence as Tokens
from dataclasses import replace
from itertools import islice

from engine.configuration import MAX_DRAFT, ControllerName, SpeculationSettings
from engine.errors import DecodeAborted, EngineError
from engine.sampling.distribution import Distribution
from engine.speculation.acceptance import Examined
from engine.speculation.auto import AutoController
from engine.speculation.controller import BandController, Controller, FixedController, RoundOutcome
from engine.speculation.experience import Experience
from engine.speculation.predictors.base import AsksSources, CatchesUp, DraftToken, Predictor


class Shadow:
    """Follows one draft until the line parts from it.

    A guess is examined when the line reaches it, whether a batch verified it or a plain step came
    by, so a source that is off stays known without being paid for. A draft that was verified takes
    the place of the one followed; one that was not waits for its turn, so that outcomes do not
    overlap.
    """

    def __init__(self) -> None:
        self._guesses: Sequence[DraftToken] = ()
        self._n_reached = 0

    def follow(self, guesses: Sequence[DraftToken], *, is_verified: bool) -> None:
        """Take the draft of a round."""
        if is_verified or self._n_reached >= len(self._guesses):
            self._guesses, self._n_reached = guesses, 0

    def examine(self, committed: Sequence[int]) -> tuple[Examined, ...]:
        """Compare what the line became with the guesses, up to the first wrong one."""
        examined: list[Examined] = []
        for token in committed:
            if self._n_reached >= len(self._guesses):
                break
            guess = self._guesses[self._n_reached]
            is_right = guess.token == token
            examined.append(Examined(guess.confidence, self._n_reached, is_right, guess.source))
            self._n_reached = self._n_reached + 1 if is_right else len(self._guesses)
        return tuple(examined)


def make_controller(
    settings: SpeculationSettings, source: str, experience: Experience
) -> Controller:
    """Give the controller of the settings for one source of drafts.

    Raises:
        PresetError: a length outside 1 to `MAX_DRAFT`.
    """
    match settings.controller:
        case ControllerName.FIXED:
            return FixedController(settings.n_draft)
        case ControllerName.BAND:
            return BandController(settings.n_draft, settings.n_draft_max)
        case ControllerName.AUTO:
            return AutoController(source, experience)


class CombinedPredictor:
    """Lets predictors that read the chat compete, and others guess where these are silent.

    A reader's draft is taken as far as the product of its confidences, the chance that all of it is
    right, stays at `min_confidence` or above. The sum of those products is the number of tokens
    that it expects to be accepted, and the largest sum drafts: the rule by which suffix decoding
    (Oliaro et al. 2024, arXiv 2411.04975) chooses between its trees. `followers` are asked in turn
    where no reader has a draft, and pulled one guess at a time: a draft model has to decode to know
    what it expects.
    """

    name = "combined"
    asks_sources = True

    def __init__(
        self,
        readers: Sequence[Predictor],
        *,
        min_confidence: float,
        followers: Sequence[Predictor] = (),
    ) -> None:
        self._readers = tuple(readers)
        self._min_confidence = min_confidence
        self._followers = tuple(followers)
        self._may_ask: Callable[[str], bool] = _always

    def gate(self, may_ask: Callable[[str], bool]) -> None:
        self._may_ask = may_ask

    def limit_catch_up(self, affords: Callable[[int], bool]) -> None:
        for source in self._sources():
            if isinstance(source, CatchesUp):
                source.limit_catch_up(affords)

    def reset(self, history: Sequence[int]) -> None:
        for source in self._sources():
            source.reset(history)

    def commit(self, tokens: Sequence[int]) -> None:
        for source in self._sources():
            source.commit(tokens)

    def propose(self) -> Iterator[DraftToken]:
        best: list[DraftToken] = []
        most_expected = 0.0
        for reader in self._readers:
            if not self._may_ask(reader.name):
                continue
            draft, expected = likely_part(reader.propose(), self._min_confidence)
            if expected > most_expected:
                best, most_expected = _named(draft, reader), expected
        if best:
            yield from best
            return
        for follower in self._followers:
            if not self._may_ask(follower.name):
                continue
            is_silent = True
            for guess in follower.propose():
                is_silent = False
                yield replace(guess, source=follower.name)
            if not is_silent:
                return

    def close(self) -> None:
        for source in self._sources():
            source.close()

    def _sources(self) -> tuple[Predictor, ...]:
        return self._readers + self._followers


def _always(_: str) -> bool:
    return True


def likely_part(
    proposed: Iterator[DraftToken], min_confidence: float
) -> tuple[list[DraftToken], float]:
    """Give the guesses up to where all are right with `min_confidence`, and how many will be."""
    draft: list[DraftToken] = []
    chance, expected = 1.0, 0.0
    for guess in islice(proposed, MAX_DRAFT):
        chance *= guess.confidence
        if chance < min_confidence:
            break
        expected += chance
        draft.append(guess)
    return draft, expected


def _named(draft: list[DraftToken], source: Predictor) -> list[DraftToken]:
    return [replace(guess, source=source.name) for guess in draft]


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
