"""What passes through the pipe between front end and engine.

The worker runs as `__main__`, so these classes live apart from it: pickle finds them by module.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.configuration import Configuration, SpeculationSettings
from engine.events import Event
from engine.requests import GenerationRequest
from engine.speculation.barred import Barred, Busy


@dataclass(frozen=True, slots=True)
class Load:
    """Open this configuration; the first message, once a process."""

    configuration: Configuration
    barred: Barred | None = None
    """A predictor that hung before and must not be used."""
    costs_path: Path | None = None
    """File that keeps measured costs from one start to the next; None keeps nothing."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Make a reply."""

    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the replies that were asked for so far."""


@dataclass(frozen=True, slots=True)
class SetSpeculation:
    """Switch predictor and controller from the next round on."""

    settings: SpeculationSettings


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the process still answers."""


@dataclass(frozen=True, slots=True)
class Pong:
    """It does."""

    busy: Busy | None = None
    """The predictor that is at work, None while none is."""


Command = Load | Generate | Stop | SetSpeculation | Ping
Answer = tuple[Event, ...] | Pong
