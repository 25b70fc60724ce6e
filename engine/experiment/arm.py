"""What is compared: an arm is a name and the settings that it changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.configuration import (
    MAX_DRAFT,
    Configuration,
    ControllerName,
    PredictorName,
    SpeculationSettings,
)
from engine.errors import EngineError, PresetError
from engine.speculation.predictor_pool import with_predictor

T = TypeVar("T", SpeculationSettings, Configuration)

LENGTHS = (2, 4, 8)
"""Draft lengths of the fixed controller that a benchmark tries."""
FORM = "PREDICTOR, PREDICTOR:auto or PREDICTOR:fixed:LENGTH"


class ExperimentError(EngineError):
    """An arm, a prompt set or a results file that cannot be used."""

    title = "The measurement cannot start"


@dataclass(frozen=True, slots=True)
class Arm:
    """Named settings."""

    name: str
    """`plain`, `lookup:fixed:4`, `2 threads`."""
    changes: Mapping[str, object]
    """Fields of a `Configuration` or of its `SpeculationSettings`, with their values."""

    def of(self, base: T) -> T:
        """The settings with those of the arm."""
        return replace(base, **self.changes)  # type: ignore[arg-type]  # by name

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.changes.get("predictor") is PredictorName.OFF

    @property
    def is_auto(self) -> bool:
        """Whether kvchat finds the draft length."""
        return self.changes.get("controller") is ControllerName.AUTO

    @property
    def uses_draft_model(self) -> bool:
        """Whether a loaded draft model drafts."""
        return self.changes.get("predictor") in (PredictorName.DRAFT, PredictorName.COMBINED)


PLAIN = Arm("plain", {"predictor": PredictorName.OFF})


def arm_of(settings: SpeculationSettings) -> Arm:
    """The arm with these settings."""
    if settings.predictor is PredictorName.OFF:
        return PLAIN
    changes: dict[str, object] = {
        "predictor": settings.predictor,
        "controller": settings.controller,
    }
    if settings.controller is ControllerName.FIXED:
        changes["n_draft"] = settings.n_draft
    return Arm(":".join(map(str, changes.values())), changes)


def drafting_arm(settings: SpeculationSettings) -> Arm:
    """The arm of these settings; if they draft nothing, all predictors with automatic lengths."""
    if settings.predictor is PredictorName.OFF:
        automatic = ControllerName.AUTO
        return arm_of(replace(settings, predictor=PredictorName.COMBINED, controller=automatic))
    return arm_of(settings)


def parse_arm(text: str, base: SpeculationSettings | None = None) -> Arm:
    """Read `PREDICTOR[:CONTROLLER[:LENGTH]]`, such as `plain`, `suffix`, `lookup:fixed:4`.

    Args:
        text: What the user typed; `off` is `plain`.
        base: Controller and length that the text leaves out.

    Raises:
        ExperimentError: a part is unknown or out of range; the message lists what is allowed.
    """
    name, *rest = text.strip().lower().split(":")
    try:
        settings = with_predictor(base or SpeculationSettings(), "off" if name == "plain" else name)
    except PresetError as error:
        raise ExperimentError(f"{text!r}: {error}") from error
    if rest:
        settings = replace(settings, controller=_controller(rest[0], text))
    if rest[1:]:
        if settings.controller is ControllerName.AUTO or rest[2:]:
            raise ExperimentError(
                f"{text!r} is not valid, because only `fixed` has a draft length: write {FORM}"
            )
        settings = replace(settings, n_draft=_length(rest[1], text))
    return arm_of(settings)


def _controller(word: str, text: str) -> ControllerName:
    if word not in list(ControllerName):
        raise ExperimentError(
            f"{text!r} is not valid, because the part after the colon must be one of "
            f"{', '.join(ControllerName)}: write {FORM}"
        )
    return ControllerName(word)


def _length(word: str, text: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= MAX_DRAFT:
        raise ExperimentError(
            f"{text!r} is not valid: the draft length must be a number from 1 to {MAX_DRAFT}"
        )
    return int(word)


def distinct(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    """Each arm once, in order."""
    return tuple({arm.name: arm for arm in arms}.values())


def arms_for(predictors: Sequence[str], settings: SpeculationSettings) -> tuple[Arm, ...]:
    """Arms that a benchmark compares with plain decoding unless the user names some.

    Args:
        predictors: What the loaded model can use (`Loaded.predictors`).
        settings: What the arms leave out.

    Returns:
        The best predictor with automatic lengths, and each predictor with fixed lengths.
        `combined` without a draft model is `suffix`, so it is left out then.
    """
    usable = [PredictorName(name) for name in predictors if name not in ("off", "custom")]
    if PredictorName.DRAFT not in usable:
        usable = [name for name in usable if name is not PredictorName.COMBINED]
    if not usable:
        raise ExperimentError("this model cannot use drafts, so there is nothing to compare")
    best = PredictorName.COMBINED if PredictorName.COMBINED in usable else usable[-1]
    automatic = replace(settings, predictor=best, controller=ControllerName.AUTO)
    return arm_of(automatic), *(
        arm_of(replace(settings, predictor=name, controller=ControllerName.FIXED, n_draft=length))
        for name in usable
        for length in LENGTHS
    )


def check_available(arms: Iterable[Arm], predictors: Sequence[str]) -> None:
    """Refuse predictors that the loaded model cannot use.

    Raises:
        ExperimentError: an arm has one; the message lists those that can be used.
    """
    wanted = {str(arm.changes["predictor"]) for arm in arms}
    if missing := sorted(wanted - {*predictors, "off"}):
        needs = "; the predictor draft needs --draft MODEL" if "draft" in missing else ""
        raise ExperimentError(
            f"{', '.join(missing)} cannot be used with this model: use "
            f"{', '.join(predictors)}{needs}"
        )
