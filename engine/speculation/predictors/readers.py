"""Predictors that read the chat itself, kept from one reply to the next."""

from collections.abc import Sequence
from dataclasses import replace

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import EngineError
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.combined import CombinedPredictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from engine.speculation.predictors.past import PastRepliesPredictor
from engine.speculation.predictors.suffix import SuffixPredictor

Replies = Sequence[Sequence[int]]

COMPETING = (PredictorName.SUFFIX,)


class Readers:
    """Gives the predictor that settings name, the same one while they stay the same.

    A predictor that is reset to a longer line indexes only what is new of it.
    """

    def __init__(self) -> None:
        self._kept: dict[PredictorName, tuple[SpeculationSettings, Predictor]] = {}
        self._past: tuple[Replies, float, PastRepliesPredictor] | None = None

    def give(self, settings: SpeculationSettings) -> Predictor:
        """Give look-up or suffixes as the settings say.

        Raises:
            PresetError: a setting of the predictor is out of its range.
        """
        kept = self._kept.get(settings.predictor)
        if kept is None or kept[0] != settings:
            kept = (settings, make_reader(settings))
            self._kept[settings.predictor] = kept
        return kept[1]

    def combine(
        self, settings: SpeculationSettings, replies: Replies, draft: Predictor | None
    ) -> Predictor:
        """Give suffixes, past replies, the draft: each asked where those before are silent.

        Look-up is not among them: what it finds, suffixes find too.

        Raises:
            PresetError: a setting of a predictor is out of its range.
        """
        return CombinedPredictor(
            [self.give(replace(settings, predictor=name)) for name in COMPETING],
            min_confidence=settings.suffix_min_confidence,
            followers=[self._of_past(replies, settings), *([draft] if draft else [])],
        )

    def _of_past(self, replies: Replies, settings: SpeculationSettings) -> Predictor:
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
