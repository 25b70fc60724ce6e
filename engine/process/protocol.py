"""What goes through the pipe to the engine's process, and what a front end sees of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from engine.cache.report import CacheSettings
from engine.configuration import Configuration, SpeculationSettings
from engine.events import Event
from engine.requests import GenerationRequest, Message


@dataclass(frozen=True, slots=True)
class Load:
    """Open this configuration; the first message, once a process."""

    configuration: Configuration
    costs_path: Path | None = None
    """File that keeps measured costs from one start to the next; None keeps nothing."""
    cache: CacheSettings = field(default_factory=CacheSettings)


@dataclass(frozen=True, slots=True)
class Generate:
    """Make a reply, beside those that are being made as far as the context has room."""

    request: GenerationRequest
    reply_id: int = 0
    """What its events name: those of 0 come bare, those of others as `OfReply`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the replies that were asked for so far."""

    reply_id: int | None = None
    """Of the one that is cancelled; None is all."""


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
    """Something to do with a kept state; `clear` needs no key, `import` has a file's path in it."""

    action: CacheAction
    key: str = ""


@dataclass(frozen=True, slots=True)
class ForgetOwner:
    """Drop the states that only this owner's prompts passed through, such as `chat:12`."""

    owner: str


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Count the tokens of a text, beside what runs; answered by `TokensCounted`."""

    key: int
    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """Write what is not on disk yet, and end."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the process still answers."""


@dataclass(frozen=True, slots=True)
class Pong:
    """It does."""


Command = (
    Load
    | Generate
    | Stop
    | SetSpeculation
    | Prefetch
    | ManageCache
    | ForgetOwner
    | CountTokens
    | Close
    | Ping
)
Answer = tuple[Event, ...] | Pong


class EngineClient(Protocol):
    """Asks without waiting; the answers come as events from `poll`.

    Several replies are made at once, each under a number; what they tell comes as `OfReply`, and
    bare under number 0. `generate` under the number of one that is made is answered with `Failed`.
    """

    @property
    def is_busy(self) -> bool:
        """A load or a generation is under way."""
        ...

    @property
    def is_alive(self) -> bool:
        """The engine can take requests."""
        ...

    def load(self, configuration: Configuration) -> None:
        """Start the engine on a model, ending the one before; answered by `Loaded` or a failure.

        No event of what was before comes from here on.
        """
        ...

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        """Start a reply; ends with `Finished` or `Failed`.

        Args:
            request: What to reply to.
            reply_id: Free once its reply ended. A reply waits where the context has no sequence
                left for it.
        """
        ...

    def stop(self, reply_id: int = 0) -> None:
        """End a reply within 0.3 s; it finishes with `FinishReason.CANCELLED`.

        A load that is under way is given up; it ends with `Failed`, and no model is loaded then.
        """
        ...

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor and controller, in the middle of a reply or of a load too."""
        ...

    def prefetch(self, messages: Sequence[Message]) -> None:
        """Bring what is kept of this conversation from disk into memory, beside what runs."""
        ...

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        """Pin, unpin, drop or verify a kept state, or clear all; the next report says what came."""
        ...

    def forget_owner(self, owner: str) -> None:
        """Drop the kept states that only this owner used, such as `chat:12`."""
        ...

    def count_tokens(self, key: int, text: str) -> None:
        """Count the tokens of a text beside what runs; `TokensCounted` has the key."""
        ...

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """Every event since the last call, waiting at most `timeout_s` for a first one."""
        ...

    def process_memory_bytes(self) -> int | None:
        """Resident memory of the engine's process, None while there is none."""
        ...

    @property
    def has_ended(self) -> bool:
        """The engine is closed and nothing of it runs any more."""
        ...

    def begin_close(self) -> None:
        """Begin to end the engine without waiting: `has_ended` tells when it is over.

        What it holds is written to disk before, which takes some seconds at most.
        """
        ...

    def close(self) -> None:
        """End the engine and its process, and wait for that."""
        ...
