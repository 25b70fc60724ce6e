"""Creates the predictors of each reply, and reports why one is not available."""

from engine.backends.base import Backend
from engine.configuration import ControllerName, PredictorName, SpeculationSettings, check_settings
from engine.grammar.mask import GrammarMask
from engine.sampling import Sampler
from engine.speculation.auto import AutoController
from engine.speculation.controller import Controller, FixedController
from engine.speculation.costs import Costs
from engine.speculation.drafter import Drafter
from engine.speculation.predictors.base import ForcedPredictor, Predictor
from engine.speculation.predictors.custom import CustomPredictor
from engine.speculation.predictors.draft_model import DraftModelPredictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from engine.speculation.predictors.suffix import SuffixPredictor


def make_controller(settings: SpeculationSettings, auto: AutoController) -> Controller:
    """The controller of a reply; `auto` is the session's.

    Raises:
        PresetError: a setting is out of its range.
    """
    check_settings(settings)
    if settings.controller is ControllerName.FIXED:
        return FixedController(settings.n_draft, auto.costs.plain.n_measured)
    auto.start_reply()
    return auto


class PredictorSet:
    """The predictors and the auto controller of one reply at a time, reused across replies.

    A lookup or suffix predictor is reused while the settings are equal, because it has indexed the
    conversation.
    """

    def __init__(
        self,
        target: Backend,
        costs: Costs,
        *,
        draft: Backend | None = None,
        custom: Predictor | None = None,
    ) -> None:
        self.auto = AutoController(costs)
        self.owner = ""
        """Owner of the last reply."""
        self._target, self._costs, self._draft = target, costs, draft
        self._draft_sequence = None if draft is None else draft.open()
        self._custom = custom and CustomPredictor(custom, target.vocabulary.n_tokens, costs.plain)
        self._text_predictors: dict[PredictorName, tuple[SpeculationSettings, Predictor]] = {}

    @property
    def names(self) -> tuple[PredictorName, ...]:
        """The available predictors."""
        return tuple(name for name in PredictorName if self._objection(name) is None)

    def engage(self, settings: SpeculationSettings, sampler: Sampler) -> Drafter:
        """The drafter of a reply; if its predictor is not available, `note` gives the reason.

        Raises:
            PresetError: a setting is out of its range.
        """
        controller = make_controller(settings, self.auto)
        note = self._objection(settings.predictor)
        sources = self._sources(settings, sampler) if note is None else ()
        mask = sampler.mask if isinstance(sampler.mask, GrammarMask) else None
        if sources and mask is not None:
            sources = (ForcedPredictor(mask), *sources)
        return Drafter(sources, controller, settings, mask=mask, note=note)

    def _objection(self, name: PredictorName) -> str | None:
        """Why a predictor is not available; None if it is."""
        lacks_draft = name is PredictorName.DRAFT and self._draft is None
        lacks_custom = name is PredictorName.CUSTOM and self._custom is None
        if name is PredictorName.OFF or (
            self._target.can_crop and not lacks_draft and not lacks_custom
        ):
            return None
        return f"the {name} predictor is not available with this model"

    def _sources(self, settings: SpeculationSettings, sampler: Sampler) -> tuple[Predictor, ...]:
        """The predictors in the order of asking: the next one if one proposes nothing."""
        match settings.predictor:
            case PredictorName.OFF:
                return ()
            case PredictorName.LOOKUP | PredictorName.SUFFIX:
                return (self._from_text(settings.predictor, settings),)
            case PredictorName.COMBINED:
                suffix = self._from_text(PredictorName.SUFFIX, settings)
                return (suffix, *self._draft_model(settings, sampler))
            case PredictorName.DRAFT:
                return self._draft_model(settings, sampler)
            case PredictorName.CUSTOM:
                return () if self._custom is None else (self._custom,)

    def _from_text(self, name: PredictorName, settings: SpeculationSettings) -> Predictor:
        saved = self._text_predictors.get(name)
        if saved is None or saved[0] != settings:
            made = look_up(settings) if name is PredictorName.LOOKUP else suffixes(settings)
            saved = self._text_predictors[name] = (settings, made)
        return saved[1]

    def _draft_model(
        self, settings: SpeculationSettings, sampler: Sampler
    ) -> tuple[Predictor, ...]:
        if self._draft is None or self._draft_sequence is None:
            return ()
        predictor = DraftModelPredictor(
            self._draft_sequence,
            sampler,
            settings,
            n_ctx=self._draft.n_ctx,
            n_batch=self._draft.n_batch,
            n_vocab=min(self._target.vocabulary.n_tokens, self._draft.vocabulary.n_tokens),
        )
        return (predictor,)


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
        self._target, self._costs = target, costs
        self.first = PredictorSet(target, costs, draft=draft, custom=custom)
        self._is_first_special = draft is not None or custom is not None
        self._free = [self.first]

    def acquire(self, owner: str) -> PredictorSet:
        """A free set, preferably one that has indexed this owner's conversation."""
        if not self._free:
            self._free.append(PredictorSet(self._target, self._costs))
        chosen = next((one for one in self._free if owner and one.owner == owner), self._free[0])
        if self._is_first_special and self.first in self._free:
            chosen = self.first
        self._free.remove(chosen)
        chosen.owner = owner
        return chosen

    def release(self, predictors: PredictorSet) -> None:
        """Return a set after its reply."""
        self._free.append(predictors)
