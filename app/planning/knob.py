"""One knob of the planner: how it is shown, turned and typed, and when it changes nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from app.planning.plan import Planner, Setup
from app.planning.values import KnobError, step_round
from engine.configuration import Configuration
from engine.memory.hardware import Device
from engine.model.architecture import Model

T = TypeVar("T")
Chooser = Literal["draft", "projector", "adapter", "device"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What knobs ask about the model and the machine."""

    model: Model
    gpus: tuple[Device, ...]


def facts_of(setup: Setup, planner: Planner) -> Facts:
    """Give the facts for a setup whose model is known."""
    devices = planner.devices_of(setup)
    gpus = tuple(device for device in devices if device.kind == "gpu")
    return Facts(planner.model(setup.configuration.model_path), gpus)


def never_idle(setup: Setup, facts: Facts) -> str:
    """Say that a knob always counts."""
    del setup, facts
    return ""


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to choose."""

    name: str
    label: str
    help: str
    shown: Callable[[Setup], str]
    turned: Callable[[Setup, Facts, int], Setup]
    """The setup one step on or back; the same one at an end."""
    read: Callable[[Setup, str], Setup] | None = None
    """The setup with a typed value, raises `KnobError`; None where values are chosen only."""
    idle: Callable[[Setup, Facts], str] = never_idle
    """Why it changes nothing in this setup; empty where it counts."""
    chooser: Chooser | None = None
    """What is chosen from a list when the knob is turned on."""


def choice(
    name: str,
    label: str,
    text: str,
    values: Sequence[T],
    get: Callable[[Setup], T],
    put: Callable[[Setup, T], Setup],
    *,
    idle: Callable[[Setup, Facts], str] = never_idle,
) -> Knob:
    """Make a knob of a closed set, which is turned round and typed by its words."""

    def read(setup: Setup, typed: str) -> Setup:
        for value in values:
            if str(value).lower() == typed.strip().lower():
                return put(setup, value)
        raise KnobError(f"{typed!r} is none of {', '.join(map(str, values))}")

    return Knob(
        name,
        label,
        text,
        lambda setup: str(get(setup)),
        lambda setup, _, step: put(setup, step_round(values, get(setup), step)),
        read,
        idle,
    )


def with_configuration(setup: Setup, configuration: Configuration) -> Setup:
    """Put another configuration into a setup."""
    return replace(setup, configuration=configuration)
