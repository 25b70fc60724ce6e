"""What passes through the pipe between front end and engine.

The worker runs as `__main__`, so these classes live apart from it: pickle finds them by module.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.cache.report import CacheSettings
from engine.configuration import Configuration, SpeculationSettings
from engine.events import Event
from engine.requests import GenerationRequest, Message
from engine.speculation.barred import Barred, Busy


@dataclass(frozen=True, slots=True)
class Load:
    """Open this configuration; the first message, once a process."""

    configuration: Configuration
    barred: Barred | None = None
    """A predictor that hung before and must not be used."""
    costs_path: Path | None = None
    """File that keeps measured costs from one start to the next; None keeps nothing."""
    cache: CacheSettings = field(default_factory=CacheSettings)


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
class Prefetch:
    """Bring what is kept of these conversations' start from disk into main memory."""

    messages: tuple[Message, ...]


CacheAction = Literal["pin", "unpin", "drop", "verify", "clear"]


@dataclass(frozen=True, slots=True)
class ManageCache:
    """Do something with a kept state; `clear` needs no key."""

    action: CacheAction
    key: str = ""


@dataclass(frozen=True, slots=True)
class ForgetOwner:
    """Drop the states that only this owner's prompts passed through, such as `chat:12`."""

    owner: str


@dataclass(frozen=True, slots=True)
class Close:
    """Write what is not on disk yet, and end."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the process still answers."""


@dataclass(frozen=True, slots=True)
class Pong:
    """It does."""

    busy: Busy | None = None
    """The predictor that is at work, None while none is."""


Command = (
    Load | Generate | Stop | SetSpeculation | Prefetch | ManageCache | ForgetOwner | Close | Ping
)
Answer = tuple[Event, ...] | Pong
