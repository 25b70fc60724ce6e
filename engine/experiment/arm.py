"""Arms of an experiment: a name and the settings that it changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.configuration import (
    MAX_DRAFT,
    ControllerName,
    PredictorName,
    SpeculationSettings,
    predictor_named,
)
from engine.errors import EngineError, PresetError

LENGTHS = (2, 4, 8)
"""Draft lengths of the fixed controller that a benchmark tries."""
FORM = "PREDICTOR, PREDICTOR:auto or PREDICTOR:fixed:LENGTH"


class ExperimentError(EngineError):
    """An arm, a prompt set or a results file that cannot be used."""

    title = "The measurement cannot start"


@dataclass(frozen=True, slots=True)
class Arm:
    """Named draft settings."""

    name: str
    """`plain`, `suffix:auto`, `lookup:fixed:4`."""
    changes: Mapping[str, Any]
    """Fields of `SpeculationSettings` with their values."""

    def of(self, base: SpeculationSettings) -> SpeculationSettings:
        """The settings with those of the arm."""
        return replace(base, **self.changes)

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
    changes: dict[str, Any] = {
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
        predictor = predictor_named("off" if name == "plain" else name)
    except PresetError as error:
        raise ExperimentError(f"{text!r}: {error}") from error
    settings = replace(base or SpeculationSettings(), predictor=predictor)
    if rest:
        controller, n_draft = (*rest, "")[:2]
        is_fixed = controller == ControllerName.FIXED
        is_length = n_draft.isdecimal() and 1 <= int(n_draft) <= MAX_DRAFT
        is_known = controller in list(ControllerName) and len(rest) <= 2
        if not is_known or (len(rest) == 2 and not (is_fixed and is_length)):
            raise ExperimentError(
                f"{text!r} is no draft setting: write {FORM}, with a LENGTH from 1 to {MAX_DRAFT}"
            )
        settings = replace(settings, controller=ControllerName(controller))
        if n_draft:
            settings = replace(settings, n_draft=int(n_draft))
    return arm_of(settings)


def distinct(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    """Each arm once, in order."""
    return tuple({arm.name: arm for arm in arms}.values())


def arms_for(predictors: Sequence[str], settings: SpeculationSettings) -> tuple[Arm, ...]:
    """The best predictor with automatic lengths, and each predictor with fixed lengths.

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
    """Refuse predictors that the loaded model cannot use."""
    wanted = {str(arm.changes["predictor"]) for arm in arms}
    if missing := sorted(wanted - {*predictors, "off"}):
        needs = "; the predictor draft needs --draft MODEL" if "draft" in missing else ""
        raise ExperimentError(
            f"{', '.join(missing)} cannot be used with this model: use "
            f"{', '.join(predictors)}{needs}"
        )
