"""Creates predictors, assigns them to replies and reports why one is not available."""

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
"""Other programs' names for draft heads, which kvchat does not support."""


def with_predictor(settings: SpeculationSettings, name: str) -> SpeculationSettings:
    """The settings with the predictor `name`.

    Raises:
        PresetError: there is no such predictor; the message lists the names.
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
    """Inputs for creating the predictors of one reply."""

    settings: SpeculationSettings
    request: GenerationRequest
    sampler: Sampler
    controller: Controller


class ReplyPredictors:
    """The predictors and the auto controller of one reply at a time, reused across replies.

    A lookup or suffix predictor is reused while its settings are equal: on a reset to a longer
    text it indexes only the new tokens. A failed predictor stays off until the user chooses it
    again.
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
        """Create predictors for loaded models, except the `taken` ones of another reply."""
        self.auto = AutoController(costs)
        self.owner = ""
        """Owner of the last reply, whose conversation they have indexed."""
        self._target, self._costs = target, costs
        self._draft = draft
        self._draft_sequence = None if draft is None else draft.open()
        self._custom = custom
        self._taken = taken
        self._cached: dict[PredictorName, tuple[SpeculationSettings, Predictor]] = {}
        self._failed: tuple[SpeculationSettings, str] | None = None

    @property
    def names(self) -> tuple[PredictorName, ...]:
        """The available predictors."""
        return tuple(name for name in PredictorName if self._objection(name) is None)

    def give_up(self, settings: SpeculationSettings, fault: str) -> None:
        """Switch off the predictor of these settings."""
        self._failed = (settings, fault)

    def engage(
        self, settings: SpeculationSettings, request: GenerationRequest, sampler: Sampler
    ) -> Drafter:
        """The drafter of a reply; if its predictor is not available, `note` gives the reason.

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
        """Why a predictor is not available; None if it is."""
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
        """Suffix and draft model; suffix finds everything that lookup finds."""
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
        saved = self._cached.get(name)
        if saved is None or saved[0] != settings:
            saved = self._cached[name] = (settings, make(settings))
        return saved[1]


def look_up(settings: SpeculationSettings) -> Predictor:
    """A lookup predictor with these settings.

    Raises:
        PresetError: a setting is out of its range.
    """
    return InputLookupPredictor(
        pattern_min=settings.lookup_pattern_min,
        pattern_max=settings.lookup_pattern_max,
        length_min=settings.lookup_length_min,
        length_max=settings.lookup_length_max,
    )


def suffixes(settings: SpeculationSettings) -> Predictor:
    """A suffix predictor with these settings."""
    return SuffixPredictor(min_confidence=settings.suffix_min_confidence)


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """Description and factory of a predictor."""

    meaning: str
    """What it proposes."""
    make: Callable[[ReplyPredictors, DraftRequest], tuple[Predictor, ...]]
    """Creates its sources, in the order of asking; the next is asked if one proposes nothing."""


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
    """Assigns a set of predictors to each running reply, because they store its tokens.

    Only the first set has the draft model or the session's custom predictor, which have one
    sequence each. Concurrent replies draft from the text only.
    """

    def __init__(
        self,
        target: Backend,
        costs: Costs,
        *,
        draft: Backend | None = None,
        custom: Predictor | None = None,
    ) -> None:
        """Create the first set."""
        self._target, self._costs = target, costs
        self.first = ReplyPredictors(target, costs, draft=draft, custom=custom)
        single = ((PredictorName.DRAFT, draft), (PredictorName.CUSTOM, custom))
        self._of_first = frozenset(name for name, one in single if one is not None)
        self._all = [self.first]
        self._free = [self.first]

    def acquire(self, owner: str) -> ReplyPredictors:
        """A free set, preferably one that has indexed this owner's conversation."""
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
        """Return a set after its reply."""
        self._free.append(predictors)
