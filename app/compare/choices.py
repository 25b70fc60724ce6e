"""The sides that one may choose from: all that the model can do, and what presets say."""

from dataclasses import dataclass
from pathlib import Path

from app.compare.side import Side
from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.presets.library import list_presets
from engine.presets.preset import read_preset


@dataclass(frozen=True, slots=True)
class Choice:
    """A side, and where it comes from."""

    side: Side
    origin: str = ""
    """Name of a preset; empty for one that is put together here."""


def choices(
    predictors: tuple[str, ...], settings: SpeculationSettings, presets_dir: Path
) -> list[Choice]:
    """Give the sides to choose from.

    Of a preset only the part about drafting is used: the model stays loaded as it is. Presets whose
    predictor this model cannot use are left out.

    Args:
        predictors: What the model can use (`Loaded.predictors`).
        settings: All that a choice does not say.
        presets_dir: Folder of the user's presets.
    """
    here: list[Choice] = []
    for name in map(PredictorName, predictors):
        side = Side(settings).with_predictor(name)
        if name is PredictorName.OFF:
            here.append(Choice(side))
        else:
            here += [Choice(side.with_controller(rule)) for rule in _RULES]
    presets = [
        Choice(Side(read_preset(entry.path).speculation.settings()), entry.name)
        for entry in list_presets(presets_dir)
        if entry.problem is None
    ]
    return here + [choice for choice in presets if choice.side.settings.predictor in predictors]


_RULES = (ControllerName.AUTO, ControllerName.BAND, ControllerName.FIXED)
