"""One side of a comparison: how it drafts."""

from dataclasses import dataclass, replace

from engine.configuration import MAX_DRAFT, ControllerName, PredictorName, SpeculationSettings
from engine.errors import EngineError


class SideError(EngineError):
    """A side was written in a way that says nothing."""

    title = "The comparison cannot start"


@dataclass(frozen=True, slots=True)
class Side:
    """The settings that one of the two replies is made with."""

    settings: SpeculationSettings

    @property
    def is_plain(self) -> bool:
        """Nothing is drafted."""
        return self.settings.predictor is PredictorName.OFF

    @property
    def label(self) -> str:
        """The settings in a few words: `plain`, `lookup · auto`, `draft · fixed 4`."""
        settings = self.settings
        if self.is_plain:
            return "plain"
        rule = settings.controller.value
        if settings.controller is not ControllerName.AUTO:
            rule += f" {settings.n_draft}"
        return f"{settings.custom_predictor or settings.predictor.value} · {rule}"

    def with_predictor(self, name: PredictorName) -> "Side":
        """The same rule with another source of drafts."""
        return Side(replace(self.settings, predictor=name))

    def with_controller(self, name: ControllerName) -> "Side":
        """The same source under another rule."""
        return Side(replace(self.settings, controller=name))

    def with_length(self, n_draft: int) -> "Side":
        """Drafts of another length, kept between 1 and the longest there may be."""
        n_draft = min(max(n_draft, 1), MAX_DRAFT)
        longest = max(self.settings.n_draft_max, n_draft)
        return Side(replace(self.settings, n_draft=n_draft, n_draft_max=longest))


def plain_side(settings: SpeculationSettings) -> Side:
    """Give plain decoding, all else as in `settings`."""
    return Side(replace(settings, predictor=PredictorName.OFF))


def speculative_side(settings: SpeculationSettings) -> Side:
    """Give what is on, or where nothing is on all sources under the automatic rule."""
    if settings.predictor is not PredictorName.OFF:
        return Side(settings)
    automatic = ControllerName.AUTO
    return Side(replace(settings, predictor=PredictorName.COMBINED, controller=automatic))


def read_side(text: str, settings: SpeculationSettings) -> Side:
    """Read `PREDICTOR[:CONTROLLER[:LENGTH]]`, such as `off`, `lookup:fixed:4`, `combined:auto`.

    Args:
        text: What was typed; `plain` is `off`.
        settings: Everything that the text does not say.

    Raises:
        SideError: If a part of it is none of the words that it can be.
    """
    predictor, _, rest = text.strip().lower().partition(":")
    controller, _, length = rest.partition(":")
    side = Side(replace(settings, predictor=PredictorName(_word(predictor, text, PREDICTORS))))
    if controller:
        side = side.with_controller(ControllerName(_word(controller, text, CONTROLLERS)))
    if length:
        if not length.isdecimal() or not 1 <= int(length) <= MAX_DRAFT:
            raise SideError(f"{text!r}: the length is a number from 1 to {MAX_DRAFT}")
        side = side.with_length(int(length))
    return side


def check_available(sides: tuple[Side, ...], predictors: tuple[str, ...]) -> None:
    """Refuse a predictor that the loaded model cannot use.

    Args:
        sides: What is to be compared.
        predictors: Those that the model can use (`Loaded.predictors`).

    Raises:
        SideError: If one of the sides drafts with another.
    """
    for side in sides:
        name = side.settings.predictor.value
        if name not in predictors:
            needs = "; name a draft model with --draft" if name == "draft" else ""
            raise SideError(
                f"the {name} predictor cannot be used here, only {', '.join(predictors)}{needs}"
            )


PREDICTORS = tuple(name.value for name in PredictorName)
CONTROLLERS = tuple(name.value for name in ControllerName)


def _word(word: str, text: str, words: tuple[str, ...]) -> str:
    word = "off" if word == "plain" else word
    if word not in words:
        raise SideError(f"{text!r}: {word or 'nothing'} is none of {', '.join(words)}")
    return word
