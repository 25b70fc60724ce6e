"""The draft of each round: its source, and how many tokens are pulled and verified."""

from collections.abc import Sequence
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import DecodeAborted, EngineError
from engine.events import RoundFinished
from engine.grammar.mask import GrammarMask
from engine.sampling import Distribution
from engine.speculation.acceptance import Examined
from engine.speculation.controller import Controller
from engine.speculation.predictors.base import DraftToken, Predictor

MIN_VERIFIED = 32
"""Verified tokens of a reply from which its acceptance is compared with `min_acceptance`."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One source's tokens for a round; empty in a plain round."""

    tokens: tuple[int, ...] = ()
    """The tokens to verify."""
    distributions: tuple[Distribution | None, ...] = ()
    """For each token, the distribution it was drawn from (`DraftToken.distribution`)."""
    n_drafted: int = 0
    """Tokens that the source proposed; `tokens` are the first of them."""
    source: str | None = None
    """Name of the predictor; None if nothing was proposed."""


class Examiner:
    """Compares one draft with the committed tokens up to the first difference.

    Unverified drafts are compared too, so that a source's acceptance stays known while it is off.
    A verified draft replaces the current one; an unverified draft is dropped while another is
    compared, so that outcomes do not overlap.
    """

    def __init__(self) -> None:
        self._source = ""
        self._rest: list[DraftToken] = []
        """Drafted tokens not reached yet, the next one last."""

    def follow(self, source: str, drafted: Sequence[DraftToken], *, is_verified: bool) -> None:
        """Compare this draft from now on, unless an earlier one has precedence."""
        if is_verified or not self._rest:
            self._source, self._rest = source, list(reversed(drafted))

    def examine(self, committed: Sequence[int]) -> tuple[Examined, ...]:
        """Outcomes of the drafted tokens at the committed tokens, up to the first wrong one."""
        examined: list[Examined] = []
        for token in committed:
            if not self._rest:
                break
            drafted = self._rest.pop()
            is_right = drafted.token == token
            examined.append(Examined(self._source, drafted.confidence, is_right))
            if not is_right:
                self._rest = []
        return tuple(examined)


class Drafter:
    """Drafts with the first source that the controller wants and that proposes something.

    Tokens are pulled one at a time while the controller wants another and the grammar allows them.
    Drafts never change the text. A source that fails ends drafting for the reply, as does an
    acceptance below `min_acceptance`.
    """

    def __init__(
        self,
        sources: Sequence[Predictor],
        controller: Controller,
        settings: SpeculationSettings,
        *,
        mask: GrammarMask | None = None,
        note: str | None = None,
    ) -> None:
        self.settings = settings
        self.controller = controller
        self.note = note
        """Why nothing is drafted; None while the requested predictor works."""
        self._sources = tuple(sources)
        self._mask = mask
        self._tokens: list[int] = []
        """Committed tokens for the grammar; empty without one."""
        self._examiner = Examiner()
        self._n_verified = self._n_accepted = 0

    @property
    def predictor(self) -> PredictorName:
        """The predictor in use."""
        return self.settings.predictor if self.note is None else PredictorName.OFF

    @property
    def is_on(self) -> bool:
        """Whether there is a predictor to ask."""
        return bool(self._sources)

    @property
    def length(self) -> int:
        """Expected draft length of the next round."""
        return self.controller.length if self.is_on else 0

    @property
    def reason(self) -> str:
        """The controller's reason for its length."""
        return self.controller.reason if self.is_on else "speculation is off"

    def reset(self, tokens: Tokens[int]) -> None:
        """Start to draft after these tokens."""
        self._tokens = [] if self._mask is None else list(tokens)
        try:
            for source in self._sources:
                source.reset(tokens)
        except EngineError as error:
            self._fail(error)

    def draft(self, n_max: int) -> Draft:
        """A draft of at most `n_max` tokens; empty if its source fails.

        Raises:
            DecodeAborted: the reply was cancelled while the draft model decoded.
        """
        try:
            source, drafted = self._pulled(n_max)
        except EngineError as error:
            self._fail(error)
            return Draft()
        if not drafted:
            return Draft()
        distributions = tuple(each.distribution for each in drafted)
        n_verified = self.controller.n_to_verify(drafted)
        if any(distribution is not None for distribution in distributions):
            # Dropping a drawn token for its own probability would bias the text's distribution.
            n_verified = len(drafted)
        self._examiner.follow(source, drafted, is_verified=n_verified > 0)
        tokens = tuple(each.token for each in drafted[:n_verified])
        return Draft(tokens, distributions[:n_verified], len(drafted), source)

    def observe(self, done: RoundFinished, committed: Tokens[int]) -> None:
        """Record a finished round and the tokens that it committed."""
        if not self.is_on:
            return
        if self._mask is not None:
            self._tokens += committed
        self.controller.observe(done, self._examiner.examine(committed))
        try:
            for source in self._sources:
                source.commit(committed)
        except EngineError as error:
            self._fail(error)
        self._n_verified += done.n_verified
        self._n_accepted += done.n_accepted
        self._check_acceptance()

    def _pulled(self, n_max: int) -> tuple[str, list[DraftToken]]:
        """Name and tokens of the first wanted source that proposes something."""
        drafted: list[DraftToken] = []
        for source in self._sources if n_max > 0 else ():
            if not self.controller.wants(source.name):
                continue
            for each in source.propose():
                if self._mask is not None:
                    before = [*self._tokens, *(one.token for one in drafted)]
                    if not self._mask.allows(before, each.token):
                        break
                drafted.append(each)
                if len(drafted) >= n_max or not self.controller.wants_another(drafted):
                    break
            if drafted:
                return source.name, drafted
        return "", drafted

    def _check_acceptance(self) -> None:
        least = self.settings.min_acceptance
        if self._n_verified >= MIN_VERIFIED and self._n_accepted < least * self._n_verified:
            self._sources = ()
            self.note = (
                f"{self._n_accepted / self._n_verified:.0%} of {self._n_verified} drafted tokens "
                f"were accepted, less than min_acceptance ({least:.0%})"
            )

    def _fail(self, error: EngineError) -> None:
        if isinstance(error, DecodeAborted):
            raise error
        self._sources = ()
        self.note = f"the {self.settings.predictor} predictor failed and was switched off: {error}"
