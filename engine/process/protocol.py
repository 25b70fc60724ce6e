"""Commands to the engine's process, its answers, and the interface that front ends use."""

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
    """Open this configuration; sent once, as the first message of a process."""

    configuration: Configuration
    costs_path: Path | None = None
    """File of the measured costs; None does not save them."""
    cache: CacheSettings = field(default_factory=CacheSettings)


@dataclass(frozen=True, slots=True)
class Generate:
    """Make a reply, in parallel with others if the context has a free sequence."""

    request: GenerationRequest
    reply_id: int = 0
    """Id of the reply; events of reply 0 come bare, others inside `OfReply`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel one reply, or all requested so far."""

    reply_id: int | None = None
    """The reply to cancel; None is all."""


@dataclass(frozen=True, slots=True)
class SetSpeculation:
    """Switch predictor and controller from the next round on."""

    settings: SpeculationSettings


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Load the saved state of this conversation's longest known prefix from disk into RAM."""

    messages: tuple[Message, ...]


CacheAction = Literal["pin", "unpin", "drop", "verify", "clear"]


@dataclass(frozen=True, slots=True)
class ManageCache:
    """Change or check a saved state; `clear` needs no key."""

    action: CacheAction
    key: str = ""


@dataclass(frozen=True, slots=True)
class ForgetOwner:
    """Drop the states that only this owner's prompts used, such as `chat:12`."""

    owner: str


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Count the tokens of a text in parallel with replies; answered by `TokensCounted`."""

    key: int
    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """Write unsaved states to disk and exit."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Check whether the process still answers."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`."""


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
    """A non-blocking client; results arrive as events from `poll`.

    Several replies can run in parallel, each with an id: their events come inside `OfReply`, those
    of id 0 bare. `generate` with the id of a running reply is answered with `Failed`.
    """

    @property
    def is_busy(self) -> bool:
        """Whether a model is loading or a reply is running."""

    @property
    def is_alive(self) -> bool:
        """Whether a model is loaded and the process runs."""

    def load(self, configuration: Configuration) -> None:
        """Start the engine with a model and end the previous one; `Loaded` or a failure follows.

        No event of the previous engine arrives after this call.
        """

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        """Start a reply as soon as a sequence is free; ends with `Finished` or `Failed`."""

    def stop(self, reply_id: int = 0) -> None:
        """End a reply within 0.3 s; it finishes with `FinishReason.CANCELLED`.

        A running load is aborted; it ends with `Failed`, and no model is loaded.
        """

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor and controller, also during a reply or a load."""

    def prefetch(self, messages: Sequence[Message]) -> None:
        """Load this conversation's saved state from disk into RAM, in parallel with replies."""

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        """Pin, unpin, drop or verify a saved state, or clear all; a report has the result."""

    def forget_owner(self, owner: str) -> None:
        """Drop the saved states that only this owner used, such as `chat:12`."""

    def count_tokens(self, key: int, text: str) -> None:
        """Count the tokens of a text in parallel with replies; `TokensCounted` has the key."""

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """Events since the last call; waits at most `timeout_s` seconds for the first one."""

    def process_memory_bytes(self) -> int | None:
        """Resident memory of the engine's process in bytes; None if no process runs."""

    @property
    def has_ended(self) -> bool:
        """Whether the engine was closed and its process and thread have ended."""

    def begin_close(self) -> None:
        """Save unsaved states and end the engine, without waiting; `has_ended` becomes true."""

    def close(self) -> None:
        """Close the engine and wait until its process has ended."""
