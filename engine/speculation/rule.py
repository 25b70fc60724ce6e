"""The controller that settings name."""

from engine.configuration import ControllerName, SpeculationSettings
from engine.speculation.auto import AutoController
from engine.speculation.controller import BandController, Controller, FixedController
from engine.speculation.experience import Experience


def make_controller(
    settings: SpeculationSettings, source: str, experience: Experience
) -> Controller:
    """Give the controller of the settings for one source of drafts.

    Raises:
        PresetError: a length outside 1 to `MAX_DRAFT`.
    """
    match settings.controller:
        case ControllerName.FIXED:
            return FixedController(settings.n_draft)
        case ControllerName.BAND:
            return BandController(settings.n_draft, settings.n_draft_max)
        case ControllerName.AUTO:
            return AutoController(source, experience)
