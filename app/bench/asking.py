"""An engine that is asked one thing after the other, and waited for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.configuration import Configuration, SpeculationSettings
from engine.errors import EngineError, WorkerError
from engine.events import (
    Event,
    Failed,
    Finished,
    Loaded,
    RoundFinished,
    SpeculationChanged,
    WorkerStopped,
)
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

POLL_S = 0.5


class PromptError(EngineError):
    """The engine refused one prompt and can be asked another."""

    title = "The prompt failed"


class EngineStoppedError(WorkerError):
    """The engine's process ended in the middle of a reply."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply with what its rounds took."""

    finished: Finished
    rounds: tuple[tuple[int, float], ...]
    """Rows of each round behind the first one, and its seconds without the drafting."""
    last_reason: str
    """What the rule of the draft length said behind the last round."""
    notes: tuple[str, ...]


class Asker:
    """One engine for a whole benchmark, so that what it learns stays, as in a chat.

    Raises:
        WorkerError: the model cannot be loaded.
    """

    def __init__(self, client: EngineClient, configuration: Configuration) -> None:
        self._client = client
        self._configuration = configuration
        self._is_gone = False
        self._events = self._poll()
        self._load()

    def _load(self) -> None:
        self._client.load(self._configuration)
        self.loaded = self._loaded()
        """What the engine said when the model was ready."""

    def ask(self, request: GenerationRequest, settings: SpeculationSettings) -> Reply:
        """Give the reply; an engine that had stopped is started again first.

        Raises:
            PromptError: the engine refused the request.
            EngineStoppedError: its process ended.
            WorkerError: it cannot be started again.
        """
        if self._is_gone:
            self._load()
            self._is_gone = False
        self._client.set_speculation(settings)
        self._client.generate(request)
        rounds: list[tuple[int, float]] = []
        notes: list[str] = []
        is_first, reason = True, ""
        for event in self._events:
            match event:
                case RoundFinished(n_verified=n_verified, verify_s=verify_s, reason=reason):
                    if not is_first:
                        rounds.append((n_verified + 1, verify_s))
                    is_first = False
                case SpeculationChanged(note=str(note)):
                    notes.append(note)
                case Finished():
                    return Reply(event, tuple(rounds), reason, tuple(notes))
                case Failed(title, message, fatal):
                    self._is_gone = fatal
                    raise PromptError(f"{title}: {message}")
                case WorkerStopped(title, message, will_restart=will_restart):
                    self._is_gone = not will_restart
                    if will_restart:
                        self.loaded = self._loaded()
                    raise EngineStoppedError(f"{title}: {message}")
                case _:
                    pass
        raise AssertionError("events never end")

    def close(self) -> None:
        """End the engine."""
        self._client.close()

    def _loaded(self) -> Loaded:
        for event in self._events:
            match event:
                case Loaded():
                    return event
                case Failed(title, message) | WorkerStopped(title, message, will_restart=False):
                    raise WorkerError(f"{title}: {message}")
                case _:
                    pass
        raise AssertionError("events never end")

    def _poll(self) -> Iterator[Event]:
        while True:
            yield from self._client.poll(POLL_S)


def is_speed(decode_tps: float | None) -> bool:
    """Whether a reply was long enough to have a speed."""
    return decode_tps is not None and math.isfinite(decode_tps) and decode_tps > 0
