"""The predictors that a session can use: spelled, made, kept, and why one of them is not used."""

from collections.abc import Sequence
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace

from engine.backends.base import Backend, Vocabulary
from engine.clock import Stopwatch
from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import EngineError, PredictorError, PresetError
from engine.grammar.mask import GrammarMask
from engine.requests import GenerationRequest
from engine.sampling import Sampler
from engine.speculation.controller import Controller
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.base import (
    Busy,
    DisabledPredictor,
    ForcedPredictor,
    Predictor,
)
from engine.speculation.predictors.draft_model import DraftModelPredictor
from engine.speculation.predictors.guard import GuardedPredictor, translated
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from engine.speculation.predictors.plugins import PredictorSetup, make_plugin
from engine.speculation.predictors.suffix import PastRepliesPredictor, SuffixPredictor

NAMES = tuple(name.value for name in PredictorName if name is not PredictorName.CUSTOM)
CUSTOM_FORM = "custom:NAME"
HEADS = ("mtp", "draft-mtp", "eagle3", "draft-eagle3")
"""Drafting heads as other programs name them; kvchat has no predictor for them."""


def with_predictor(settings: SpeculationSettings, spelled: str) -> SpeculationSettings:
    """The settings with the predictor that `off`, `lookup` or `custom:NAME` spells.

    Raises:
        PresetError: it spells none; the message lists what there is.
    """
    kind, _, name = spelled.strip().partition(":")
    if kind == PredictorName.CUSTOM and name:
        return replace(settings, predictor=PredictorName.CUSTOM, custom_predictor=name)
    if kind in NAMES and not name:
        return replace(settings, predictor=PredictorName(kind))
    known = ", ".join((*NAMES, CUSTOM_FORM))
    if kind in HEADS:
        raise PresetError(
            f"{kind} drafts with a head of the model's own, which kvchat's engine does not run: "
            "a head reads hidden states, and kvchat's predictors are told tokens only. "
            f"Use one of {known} here; llama-server can run the head: `kvchat export` writes "
            "`--spec-type draft-mtp` where the preset has n_mtp_draft"
        )
    raise PresetError(f"there is no predictor {spelled!r}: there are {known}")


Replies = Sequence[Sequence[int]]


class Readers:
    """Predictors that read the chat, the same ones while their settings stay the same.

    A predictor that is reset to a longer line indexes only what is new of it.
    """

    def __init__(self) -> None:
        self._kept: dict[PredictorName, tuple[SpeculationSettings, Predictor]] = {}
        self._past: tuple[Replies, float, PastRepliesPredictor] | None = None

    def give(self, settings: SpeculationSettings) -> Predictor:
        """Look-up or suffixes, as the settings say.

        Raises:
            PresetError: a setting of the predictor is out of its range.
        """
        kept = self._kept.get(settings.predictor)
        if kept is None or kept[0] != settings:
            kept = (settings, make_reader(settings))
            self._kept[settings.predictor] = kept
        return kept[1]

    def of_past(self, replies: Replies, settings: SpeculationSettings) -> Predictor:
        """What guesses from replies of other chats; newer ones are added to what it knows."""
        least = settings.suffix_min_confidence
        known, trusted, predictor = self._past or ((), least, None)
        if predictor is None or trusted != least or replies[: len(known)] != known:
            predictor = PastRepliesPredictor(replies, min_confidence=least)
        else:
            predictor.learn(replies[len(known) :])
        self._past = (replies, least, predictor)
        return predictor


def make_reader(settings: SpeculationSettings) -> Predictor:
    """Make the predictor that the settings name.

    Raises:
        PresetError: a setting of the predictor is out of its range.
    """
    match settings.predictor:
        case PredictorName.LOOKUP:
            return InputLookupPredictor(
                pattern_min=settings.lookup_pattern_min,
                pattern_max=settings.lookup_pattern_max,
                length_min=settings.lookup_length_min,
                length_max=settings.lookup_length_max,
            )
        case PredictorName.SUFFIX:
            return SuffixPredictor(min_confidence=settings.suffix_min_confidence)
        case _:
            raise EngineError(f"the {settings.predictor} predictor does not read the chat")


class CustomPredictors:
    """The plugin's predictor that settings name, the same one while they stay the same.

    One that was `given` is used in its place, whatever the settings name; its maker closes it.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, n_ctx: int, given: Predictor | None = None
    ) -> None:
        self._given = given
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        self._kept: tuple[SpeculationSettings, Predictor] | None = None

    def give(self, settings: SpeculationSettings) -> Predictor:
        """The predictor, importing its package when it is named for the first time.

        Raises:
            PredictorError: none is named, it is not installed, or it cannot be made.
        """
        if self._given is not None:
            return self._given
        if self._kept is not None and self._kept[0] == settings:
            return self._kept[1]
        self.close()
        if not settings.custom_predictor:
            raise PredictorError("no custom predictor is named: write `--predictor custom:NAME`")
        made = make_plugin(
            settings.custom_predictor, PredictorSetup(self._vocabulary, settings, self._n_ctx)
        )
        self._kept = (settings, made)
        return made

    def close(self) -> None:
        """Close the predictor and forget it; the next one is made afresh.

        Raises:
            PredictorError: the predictor raised.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            with translated("close"):
                kept[1].close()


@dataclass(frozen=True, slots=True)
class Engaged:
    """Who drafts a reply."""

    name: PredictorName
    title: str
    """What was asked for, as `SpeculationSettings.predictor_title` spells it."""
    sources: tuple[GuardedPredictor, ...]
    """In the order in which they are asked: one guesses where those before it are silent."""
    note: str | None
    """Why it is not the predictor that was asked for, None where it is."""


class Registry:
    """Engages the predictor that settings ask for; where it cannot, nobody drafts and it says why.

    A predictor that failed stays off for the settings that it failed under, the next replies too;
    to choose it again is to try it again.
    """

    def __init__(
        self,
        target: Backend,
        draft: Backend | None = None,
        disabled_predictor: DisabledPredictor | None = None,
        custom: Predictor | None = None,
        *,
        taken: frozenset[PredictorName] = frozenset(),
    ) -> None:
        """Over loaded models; `taken` are predictors that another registry of them has."""
        self._target = target
        self._taken = taken
        self._draft = draft
        self._draft_sequence = None if draft is None else draft.open()
        self._readers = Readers()
        self._custom = CustomPredictors(target.vocabulary, n_ctx=target.n_ctx, given=custom)
        self._disabled_predictor = disabled_predictor
        self._failed: tuple[SpeculationSettings, str] | None = None
        self._engaged: Engaged | None = None
        self._making: tuple[str, Stopwatch] | None = None

    def names(self, settings: SpeculationSettings) -> tuple[PredictorName, ...]:
        """The predictors that can be switched on."""
        names = [PredictorName.OFF]
        if self._target.can_crop:
            names += [PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.COMBINED]
            names += [PredictorName.DRAFT] if self._draft is not None else []
            names += [PredictorName.CUSTOM] if settings.custom_predictor else []
        if self._disabled_predictor is not None:
            names = [
                name for name in names if settings.title_of(name) != self._disabled_predictor.title
            ]
        return tuple(names)

    def give_up(self, settings: SpeculationSettings, fault: str) -> None:
        """Leave the predictor of these settings off from now on."""
        self._failed = (settings, fault)

    def engage(
        self,
        settings: SpeculationSettings,
        request: GenerationRequest,
        sampler: Sampler,
        *,
        controller: Controller,
        plain_step: PlainStep,
    ) -> Engaged:
        """Make the sources of the settings ready for a reply.

        Raises:
            PresetError: a setting of the predictor is out of its range.
        """
        title, note = settings.predictor_title, self._objection(settings)
        self._engaged = Engaged(PredictorName.OFF, title, (), note)
        if note is not None or settings.predictor is PredictorName.OFF:
            return self._engaged
        self._making = (title, Stopwatch())
        try:
            made = self._make(settings, request, sampler, controller)
        except PredictorError as error:
            self.give_up(settings, f"the {title} predictor is off: {error}")
            self._engaged = replace(self._engaged, note=self._objection(settings))
        else:
            mask = sampler.mask if isinstance(sampler.mask, GrammarMask) else None
            if mask is not None:
                made = (ForcedPredictor(mask), *made)
            guarded = tuple(self._guarded(each, settings, plain_step, mask) for each in made)
            self._engaged = Engaged(settings.predictor, title, guarded, None)
        finally:
            self._making = None
        return self._engaged

    def busy(self) -> Busy | None:
        """The predictor that is at work now, None while none is; from any thread."""
        making, engaged = self._making, self._engaged
        if making is not None:
            return Busy(making[0], making[1].total())
        if engaged is None:
            return None
        running = (source.busy_s for source in engaged.sources)
        busy_s = next((each for each in running if each is not None), None)
        return None if busy_s is None else Busy(engaged.title, busy_s)

    def close(self) -> None:
        """Let go what a plugin holds.

        Raises:
            PredictorError: the plugin raised.
        """
        self._custom.close()

    def _guarded(
        self,
        predictor: Predictor,
        settings: SpeculationSettings,
        plain_step: PlainStep,
        mask: GrammarMask | None,
    ) -> GuardedPredictor:
        is_custom = settings.predictor is PredictorName.CUSTOM
        is_custom = is_custom and not isinstance(predictor, ForcedPredictor)
        name = settings.predictor_title if is_custom else predictor.name
        n_vocab = self._target.vocabulary.n_tokens
        return GuardedPredictor(
            predictor,
            name=name,
            n_vocab=n_vocab,
            plain_step=plain_step,
            mask=mask,
            is_custom=is_custom,
        )

    def _objection(self, settings: SpeculationSettings) -> str | None:
        if self._failed is not None and self._failed[0] is settings:
            return self._failed[1]
        if (
            self._disabled_predictor is not None
            and self._disabled_predictor.title == settings.predictor_title
        ):
            return self._disabled_predictor.reason
        is_drafted = settings.predictor is PredictorName.DRAFT
        is_off = settings.predictor is PredictorName.OFF
        if settings.predictor in self._taken:
            return f"the {settings.predictor} predictor drafts for another reply: this has none"
        if not is_off and (not self._target.can_crop or (is_drafted and self._draft is None)):
            return f"the {settings.predictor} predictor is not available with this model"
        return None

    def _make(
        self,
        settings: SpeculationSettings,
        request: GenerationRequest,
        sampler: Sampler,
        controller: Controller,
    ) -> tuple[Predictor, ...]:
        """The sources of the settings.

        Look-up is not part of `combined`: what it finds, suffixes find too.
        """
        match settings.predictor:
            case PredictorName.LOOKUP | PredictorName.SUFFIX:
                return (self._readers.give(settings),)
            case PredictorName.COMBINED:
                suffix = self._readers.give(replace(settings, predictor=PredictorName.SUFFIX))
                past = self._readers.of_past(self._past_replies(request), settings)
                return (suffix, past, *self._draft_model(settings, sampler, controller))
            case PredictorName.CUSTOM:
                return (self._custom.give(settings),)
            case PredictorName.DRAFT | PredictorName.OFF:
                return self._draft_model(settings, sampler, controller)

    def _past_replies(self, request: GenerationRequest) -> tuple[Tokens[int], ...]:
        """The past replies that this model could have said: no token beyond its vocabulary."""
        n_vocab = self._target.vocabulary.n_tokens
        return tuple(
            reply
            for reply in request.past_replies
            if reply and min(reply) >= 0 and max(reply) < n_vocab
        )

    def _draft_model(
        self, settings: SpeculationSettings, sampler: Sampler, controller: Controller
    ) -> tuple[Predictor, ...]:
        if self._draft is None or self._draft_sequence is None:
            return ()
        predictor = DraftModelPredictor(
            self._draft_sequence,
            sampler,
            n_ctx=self._draft.n_ctx,
            n_batch=self._draft.n_batch,
            n_vocab=min(self._target.vocabulary.n_tokens, self._draft.vocabulary.n_tokens),
            min_tokens=settings.draft_min_tokens,
            min_confidence=settings.draft_min_confidence,
            verification=settings.verification,
            affords_catch_up=controller.affords_catch_up,
        )
        return (predictor,)
