"""What a front end sees of an engine, whether it runs in a worker process or in this one."""

from collections.abc import Sequence
from typing import Protocol

from engine.configuration import Configuration, SpeculationSettings
from engine.events import Event
from engine.requests import GenerationRequest, Message
from engine.worker_protocol import CacheAction


class EngineClient(Protocol):
    """Asks without waiting; the answers come as events from `poll`.

    One request runs at a time. `generate` while another runs is answered with `Failed`.
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

    def generate(self, request: GenerationRequest) -> None:
        """Start a reply; ends with `Finished` or `Failed`."""
        ...

    def stop(self) -> None:
        """End the running reply within 0.3 s; it finishes with `FinishReason.CANCELLED`.

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
