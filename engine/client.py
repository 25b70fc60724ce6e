"""What a front end sees of an engine, whether it runs in a worker process or in this one."""

from typing import Protocol

from engine.configuration import Configuration, SpeculationSettings
from engine.events import Event
from engine.requests import GenerationRequest


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
        """Start the engine on a model, ending the one before; answered by `Loaded` or a failure."""
        ...

    def generate(self, request: GenerationRequest) -> None:
        """Start a reply; ends with `Finished` or `Failed`."""
        ...

    def stop(self) -> None:
        """End the running reply within 0.3 s; it finishes with `FinishReason.CANCELLED`."""
        ...

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor and controller, in the middle of a reply too."""
        ...

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """Every event since the last call, waiting at most `timeout_s` for a first one."""
        ...

    def process_memory_bytes(self) -> int | None:
        """Resident memory of the engine's process, None while there is none."""
        ...

    def close(self) -> None:
        """End the engine and its process."""
        ...
