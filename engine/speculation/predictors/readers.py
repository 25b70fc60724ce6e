"""Predictors that read the chat itself, kept from one reply to the next."""

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import EngineError
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from engine.speculation.predictors.suffix import SuffixPredictor


class Readers:
    """Gives the predictor that settings name, the same one while they stay the same.

    A predictor that is reset to a longer line indexes only what is new of it.
    """

    def __init__(self) -> None:
        self._settings: SpeculationSettings | None = None
        self._predictor: Predictor | None = None

    def give(self, settings: SpeculationSettings) -> Predictor:
        """Give the predictor for these settings.

        Raises:
            PresetError: a setting of the predictor is out of its range.
        """
        if self._predictor is None or settings != self._settings:
            self._predictor = make_reader(settings)
            self._settings = settings
        return self._predictor


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
