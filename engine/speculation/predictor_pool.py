"""The predictors: how each is made, which reply has which, and why one is not used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.backends.base import Backend
from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import PresetError
from engine.grammar.mask import GrammarMask
from engine.requests import GenerationRequest
from engine.sampling import Sampler
from engine.speculation.auto import AutoController
from engine.speculation.controller import Controller
from engine.speculation.costs import Costs
from engine.speculation.drafter import Drafter, make_controller
from engine.speculation.predictors.base import ForcedPredictor, Predictor
from engine.speculation.predictors.draft_model import DraftModelPredictor
from engine.speculation.predictors.guard import GuardedPredictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from engine.speculation.predictors.suffix import SuffixPredictor

NAMES = tuple(name.value for name in PredictorName if name is not PredictorName.CUSTOM)
HEADS = ("mtp", "draft-mtp", "eagle3", "draft-eagle3")
"""Drafting heads as other programs name them; kvchat has no predictor for them."""


def with_predictor(settings: SpeculationSettings, name: str) -> SpeculationSettings:
    """The settings with the predictor of a name.

    Raises:
        PresetError: there is none; the message lists what there is.
    """
    name = name.strip()
    if name in NAMES:
        return replace(settings, predictor=PredictorName(name))
    known = ", ".join(NAMES)
    if name in HEADS:
        raise PresetError(
            f"{name} drafts with a head on the target's hidden states, which kvchat cannot run. "
            f"Choose one of {known}. llama-server can run a head (--spec-type draft-mtp): set "
            "n_mtp_draft in the preset and use `kvchat export`"
        )
    raise PresetError(f"there is no predictor {name!r}: use one of {known}")


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What the predictors of one reply are made for."""

    settings: SpeculationSettings
    request: GenerationRequest
    sampler: Sampler
    controller: Controller


class ReplyPredictors:
    """The predictors and the automatic rule of one reply at a time; both learn from each reply.

    A predictor that reads the chat stays while its settings do: reset to a longer line, it indexes
    only what is new of it. One that failed stays off for the settings that it failed under; to
    choose it again is to try it again.
    """

    def __init__(
        self,
        target: Backend,
        costs: Costs,
        *,
        draft: Backend | None = None,
        custom: Predictor | None = None,
        taken: frozenset[PredictorName] = frozenset(),
    ) -> None:
        """Over loaded models; `taken` are predictors that another reply has alone."""
        self.auto = AutoController(costs)
        self.owner = ""
        """Whose reply they drafted for last: they have read that chat."""
        self._target, self._costs = target, costs
        self._draft = draft
        self._draft_sequence = None if draft is None else draft.open()
        self._custom = custom
        self._taken = taken
        self._kept: dict[PredictorName, tuple[SpeculationSettings, Predictor]] = {}
        self._failed: tuple[SpeculationSettings, str] | None = None

    @property
    def names(self) -> tuple[PredictorName, ...]:
        """The predictors that can be switched on."""
        return tuple(name for name in PredictorName if self._objection(name) is None)

    def give_up(self, settings: SpeculationSettings, fault: str) -> None:
        """Leave the predictor of these settings off from now on."""
        self._failed = (settings, fault)

    def engage(
        self, settings: SpeculationSettings, request: GenerationRequest, sampler: Sampler
    ) -> Drafter:
        """What drafts a reply; where the predictor cannot, nobody does, and `note` says why.

        Raises:
            PresetError: a setting is out of its range.
        """
        controller = make_controller(settings, self.auto)
        note = self._objection(settings.predictor)
        if self._failed is not None and self._failed[0] is settings:
            note = self._failed[1]
        made: tuple[Predictor, ...] = ()
        if note is None:
            made = PREDICTORS[settings.predictor].make(
                self, DraftRequest(settings, request, sampler, controller)
            )
        mask = sampler.mask if made and isinstance(sampler.mask, GrammarMask) else None
        if mask is not None:
            made = (ForcedPredictor(mask), *made)
        n_vocab, plain = self._target.vocabulary.n_tokens, self._costs.plain
        sources = tuple(GuardedPredictor(each, n_vocab, plain, mask=mask) for each in made)
        return Drafter(sources, controller, settings, note=note)

    def _objection(self, name: PredictorName) -> str | None:
        """Why a predictor cannot be used, None where it can."""
        if name is PredictorName.OFF:
            return None
        if name in self._taken:
            return f"the {name} predictor is in use by another reply"
        lacks_draft = name is PredictorName.DRAFT and self._draft is None
        lacks_custom = name is PredictorName.CUSTOM and self._custom is None
        if not self._target.can_crop or lacks_draft or lacks_custom:
            return f"the {name} predictor is not available with this model"
        return None

    # --- how each is made ---

    def _nobody(self, _: DraftRequest) -> tuple[Predictor, ...]:
        return ()

    def _look_up(self, asked: DraftRequest) -> tuple[Predictor, ...]:
        return (self._reader(PredictorName.LOOKUP, asked.settings, look_up),)

    def _suffixes(self, asked: DraftRequest) -> tuple[Predictor, ...]:
        return (self._reader(PredictorName.SUFFIX, asked.settings, suffixes),)

    def _combined(self, asked: DraftRequest) -> tuple[Predictor, ...]:
        """Look-up is not among them: what it finds, suffixes find too."""
        return (*self._suffixes(asked), *self._draft_model(asked))

    def _draft_model(self, asked: DraftRequest) -> tuple[Predictor, ...]:
        if self._draft is None or self._draft_sequence is None:
            return ()
        predictor = DraftModelPredictor(
            self._draft_sequence,
            asked.sampler,
            n_ctx=self._draft.n_ctx,
            n_batch=self._draft.n_batch,
            n_vocab=min(self._target.vocabulary.n_tokens, self._draft.vocabulary.n_tokens),
            min_tokens=asked.settings.draft_min_tokens,
            min_confidence=asked.settings.draft_min_confidence,
            verification=asked.settings.verification,
            affords_catch_up=asked.controller.affords_catch_up,
        )
        return (predictor,)

    def _given(self, _: DraftRequest) -> tuple[Predictor, ...]:
        return () if self._custom is None else (self._custom,)

    def _reader(
        self,
        name: PredictorName,
        settings: SpeculationSettings,
        make: Callable[[SpeculationSettings], Predictor],
    ) -> Predictor:
        kept = self._kept.get(name)
        if kept is None or kept[0] != settings:
            kept = self._kept[name] = (settings, make(settings))
        return kept[1]


def look_up(settings: SpeculationSettings) -> Predictor:
    """Look-up with these settings.

    Raises:
        PresetError: one is out of its range.
    """
    return InputLookupPredictor(
        pattern_min=settings.lookup_pattern_min,
        pattern_max=settings.lookup_pattern_max,
        length_min=settings.lookup_length_min,
        length_max=settings.lookup_length_max,
    )


def suffixes(settings: SpeculationSettings) -> Predictor:
    """Suffixes with these settings."""
    return SuffixPredictor(min_confidence=settings.suffix_min_confidence)


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """One predictor that can be chosen."""

    meaning: str
    """What it guesses, in words."""
    make: Callable[[ReplyPredictors, DraftRequest], tuple[Predictor, ...]]
    """Its sources, in the order in which they are asked: one guesses where those before it are
    silent."""


PREDICTORS: Mapping[PredictorName, PredictorKind] = {
    PredictorName.OFF: PredictorKind("nothing", ReplyPredictors._nobody),
    PredictorName.LOOKUP: PredictorKind(
        "the tokens after the longest earlier match of the last tokens", ReplyPredictors._look_up
    ),
    PredictorName.SUFFIX: PredictorKind(
        "the most frequent continuation of the last tokens in this chat",
        ReplyPredictors._suffixes,
    ),
    PredictorName.COMBINED: PredictorKind(
        "suffix first, then the draft model",
        ReplyPredictors._combined,
    ),
    PredictorName.DRAFT: PredictorKind(
        "the tokens of a smaller model with the same vocabulary", ReplyPredictors._draft_model
    ),
    PredictorName.CUSTOM: PredictorKind(
        "the tokens of a predictor object passed to Session", ReplyPredictors._given
    ),
}


class PredictorPool:
    """Gives each reply under way predictors of its own: they keep the tokens that they have read.

    The draft model, or a predictor that the session was given, goes with the first set: they have
    one sequence each, so a reply beside another that has them drafts from the text only.
    """

    def __init__(
        self,
        target: Backend,
        costs: Costs,
        *,
        draft: Backend | None = None,
        custom: Predictor | None = None,
    ) -> None:
        """With the set that the first reply takes."""
        self._target, self._costs = target, costs
        self.first = ReplyPredictors(target, costs, draft=draft, custom=custom)
        single = ((PredictorName.DRAFT, draft), (PredictorName.CUSTOM, custom))
        self._of_first = frozenset(name for name, one in single if one is not None)
        self._all = [self.first]
        self._free = [self.first]

    def acquire(self, owner: str) -> ReplyPredictors:
        """A set that nobody has: the one that read this owner's chat before, if there is one."""
        if not self._free:
            made = ReplyPredictors(self._target, self._costs, taken=self._of_first)
            self._all.append(made)
            self._free.append(made)
        first_made = min(self._free, key=self._all.index)
        chosen = next((one for one in self._free if owner and one.owner == owner), first_made)
        if self._of_first and self.first in self._free:
            chosen = self.first
        self._free.remove(chosen)
        chosen.owner = owner
        return chosen

    def release(self, predictors: ReplyPredictors) -> None:
        """The reply is over: another may have them."""
        self._free.append(predictors)
