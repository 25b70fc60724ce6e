"""The predictor of a plugin, kept from one reply to the next."""

from engine.backends.base import Vocabulary
from engine.configuration import SpeculationSettings
from engine.errors import PredictorError
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.guarded import translated
from engine.speculation.predictors.plugins import PredictorSetup, make_plugin


class CustomPredictors:
    """Gives the plugin's predictor that settings name, the same one while they stay the same."""

    def __init__(self, vocabulary: Vocabulary, *, n_ctx: int) -> None:
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        self._kept: tuple[SpeculationSettings, Predictor] | None = None

    def give(self, settings: SpeculationSettings) -> Predictor:
        """Give the predictor, importing its package when it is named for the first time.

        Raises:
            PredictorError: none is named, it is not installed, or it cannot be made.
        """
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
