"""The predictors that a session can use, and why one of them is not used."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Backend
from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import PredictorError
from engine.requests import GenerationRequest
from engine.sampling.sampler import Sampler
from engine.speculation.barred import Barred, Busy
from engine.speculation.cost import PlainStep, Stopwatch
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.custom import CustomPredictors
from engine.speculation.predictors.draft_model import DraftModelPredictor
from engine.speculation.predictors.guarded import GuardedPredictor
from engine.speculation.predictors.readers import Readers


@dataclass(frozen=True, slots=True)
class Engaged:
    """Who drafts a reply."""

    name: PredictorName
    predictor: GuardedPredictor | None
    note: str | None
    """Why it is not the predictor that was asked for, None where it is."""


class Roster:
    """Engages the predictor that settings ask for; where it cannot, nobody drafts and it says why.

    A predictor that failed stays off for the settings that it failed under, the next replies too;
    to choose it again is to try it again.
    """

    def __init__(
        self, target: Backend, draft: Backend | None = None, barred: Barred | None = None
    ) -> None:
        self._target = target
        self._draft = draft
        self._draft_sequence = None if draft is None else draft.open()
        self._readers = Readers()
        self._custom = CustomPredictors(target.vocabulary, n_ctx=target.n_ctx)
        self._barred = barred
        self._failed: tuple[SpeculationSettings, str] | None = None
        self._engaged: Engaged | None = None
        self._making: tuple[str, Stopwatch] | None = None

    def names(self, settings: SpeculationSettings) -> tuple[PredictorName, ...]:
        """Give the predictors that can be switched on."""
        names = [PredictorName.OFF]
        if self._target.can_crop:
            names += [PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.COMBINED]
            names += [PredictorName.DRAFT] if self._draft is not None else []
            names += [PredictorName.CUSTOM] if settings.custom_predictor else []
        if self._barred is not None:
            names = [name for name in names if settings.title_of(name) != self._barred.title]
        return tuple(names)

    def give_up(self, settings: SpeculationSettings, fault: str) -> None:
        """Leave the predictor of these settings off from now on."""
        self._failed = (settings, fault)

    def engage(
        self,
        settings: SpeculationSettings,
        request: GenerationRequest,
        sampler: Sampler,
        plain_step: PlainStep,
    ) -> Engaged:
        """Make the predictor of the settings ready for a reply.

        Raises:
            PresetError: a setting of the predictor is out of its range.
        """
        self._engaged = self._engage(settings, request, sampler, plain_step)
        return self._engaged

    def busy(self) -> Busy | None:
        """Give the predictor that is at work now, None while none is; from any thread."""
        making, engaged = self._making, self._engaged
        if making is not None:
            return Busy(making[0], making[1].total())
        predictor = None if engaged is None else engaged.predictor
        busy_s = None if predictor is None else predictor.busy_s
        return None if predictor is None or busy_s is None else Busy(predictor.name, busy_s)

    def close(self) -> None:
        """Let go what a plugin holds.

        Raises:
            PredictorError: the plugin raised.
        """
        self._custom.close()

    def _engage(
        self,
        settings: SpeculationSettings,
        request: GenerationRequest,
        sampler: Sampler,
        plain_step: PlainStep,
    ) -> Engaged:
        objection = self._objection(settings)
        if objection is not None or settings.predictor is PredictorName.OFF:
            return Engaged(PredictorName.OFF, None, objection)
        title = settings.predictor_title
        self._making = (title, Stopwatch())
        try:
            made = self._make(settings, request, sampler)
        except PredictorError as error:
            fault = f"the {title} predictor is off: {error}"
            self.give_up(settings, fault)
            return Engaged(PredictorName.OFF, None, fault)
        finally:
            self._making = None
        n_vocab = self._target.vocabulary.n_tokens
        guarded = GuardedPredictor(made, name=title, n_vocab=n_vocab, plain_step=plain_step)
        return Engaged(settings.predictor, guarded, None)

    def _objection(self, settings: SpeculationSettings) -> str | None:
        if self._failed is not None and self._failed[0] is settings:
            return self._failed[1]
        if self._barred is not None and self._barred.title == settings.predictor_title:
            return self._barred.reason
        is_drafted = settings.predictor is PredictorName.DRAFT
        is_off = settings.predictor is PredictorName.OFF
        if not is_off and (not self._target.can_crop or (is_drafted and self._draft is None)):
            return f"the {settings.predictor} predictor is not available with this model"
        return None

    def _make(
        self, settings: SpeculationSettings, request: GenerationRequest, sampler: Sampler
    ) -> Predictor:
        match settings.predictor:
            case PredictorName.LOOKUP | PredictorName.SUFFIX:
                return self._readers.give(settings)
            case PredictorName.COMBINED:
                draft = self._draft_model(sampler, settings)
                return self._readers.combine(settings, self._past_replies(request), draft)
            case PredictorName.CUSTOM:
                return self._custom.give(settings)
            case PredictorName.DRAFT | PredictorName.OFF:
                drafting = self._draft_model(sampler, settings)
                if drafting is None:
                    raise PredictorError("no draft model is loaded: name one with --draft")
                return drafting

    def _past_replies(self, request: GenerationRequest) -> tuple[Tokens[int], ...]:
        """Give the past replies that this model could have said: no token beyond its vocabulary."""
        n_vocab = self._target.vocabulary.n_tokens
        return tuple(
            reply
            for reply in request.past_replies
            if reply and min(reply) >= 0 and max(reply) < n_vocab
        )

    def _draft_model(self, sampler: Sampler, settings: SpeculationSettings) -> Predictor | None:
        if self._draft is None or self._draft_sequence is None:
            return None
        return DraftModelPredictor(
            self._draft_sequence,
            sampler,
            n_ctx=self._draft.n_ctx,
            n_batch=self._draft.n_batch,
            n_vocab=self._target.vocabulary.n_tokens,
            min_tokens=settings.draft_min_tokens,
            min_confidence=settings.draft_min_confidence,
            verification=settings.verification,
        )
