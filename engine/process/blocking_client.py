"""Blocking client of an engine: load a model, then make replies one by one or in parallel.

Commands, benchmarks and checks use it; the screen polls an `EngineClient` itself.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from engine.configuration import Configuration, SpeculationSettings
from engine.errors import WorkerError
from engine.events import Event, Failed, Finished, Loaded, OfReply, Waiting, WorkerStopped
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

POLL_S = 0.25


class RequestFailedError(WorkerError):
    """The engine refused a load or a request, or failed while it ran."""

    def __init__(self, event: Failed | WorkerStopped) -> None:
        super().__init__(event.message)
        self.title = event.title
        self.event = event


class EngineStoppedError(RequestFailedError):
    """The engine's process ended before the load or the reply was done."""

    event: WorkerStopped


class EngineTimeoutError(WorkerError):
    """A load or a reply exceeded its time limit."""

    title = "The engine did not answer in time"


class BlockingClient:
    """Waits for the loads and replies of an `EngineClient`, which stays usable directly.

    If the engine ended during a reply, the model is loaded again before the next reply.

    Args:
        client: The engine; the caller closes it.
        limit_s: Time limit of a load or a reply in seconds; can be changed between two.
        on_restart: Called when the engine's process ended and is being restarted.
        on_wait: Called with the text of each `Waiting` event while a model loads.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        limit_s: float = math.inf,
        on_restart: Callable[[WorkerStopped], None] = lambda _: None,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.client = client
        self.limit_s = limit_s
        self._on_restart = on_restart
        self._on_wait = on_wait
        self._loaded: Loaded | None = None
        self._configuration: Configuration | None = None
        self._pending: deque[Event] = deque()
        self._is_gone = False
        self._is_restarting = False
        self.finished: Finished | None = None
        """The end of the last reply; None while the reply runs."""

    @property
    def last_loaded(self) -> Loaded:
        """The last `Loaded` event."""
        assert self._loaded is not None, "load a model first"
        return self._loaded

    def load(self, configuration: Configuration) -> Loaded:
        """Load a model and wait until it is ready.

        Raises:
            RequestFailedError: the engine refused the model.
            EngineStoppedError: the engine's process ended and is not restarted.
            EngineTimeoutError: loading took longer than the limit.
        """
        self._configuration = configuration
        self._pending.clear()
        self._is_gone = False
        self.client.load(configuration)
        return self._wait_until_loaded()

    def reply(
        self, request: GenerationRequest, speculation: SpeculationSettings | None = None
    ) -> Iterator[Event]:
        """Start a reply and return an iterator of its events; the last one is `Finished`.

        Args:
            request: The prompt and its settings.
            speculation: Settings to switch to first; None changes nothing.

        Raises:
            RequestFailedError: the engine refused the request, or cannot reload the model.
            EngineStoppedError: the engine's process ended.
            EngineTimeoutError: the reply took longer than the limit.
        """
        self._wait_for_a_model()
        self.finished = None
        if speculation is not None:
            self.client.set_speculation(speculation)
        self.client.generate(request)
        return self.rest_of_reply()

    def rest_of_reply(self) -> Iterator[Event]:
        """Remaining events of an interrupted iteration, none if finished; raises like `reply`."""
        if self.finished is not None:
            return
        for event in self.events(self.limit_s):
            if isinstance(event, Failed | WorkerStopped):
                self._raise(event)
            if isinstance(event, Finished):
                self.finished = event
            yield event
            if self.finished is not None:
                return

    def replies(
        self, requests: Iterable[tuple[int, GenerationRequest]], *, n_at_once: int
    ) -> Iterator[OfReply]:
        """Events of several parallel replies; each reply ends with `Finished` or `Failed`.

        Args:
            requests: Pairs of a reply id, 1 or more, and its request; consumed as replies end.
            n_at_once: Maximum number of replies in progress.

        Raises:
            EngineStoppedError: the engine's process ended; the running replies are lost.
            RequestFailedError: the engine failed as a whole.
        """
        self._wait_for_a_model()
        waiting, events, n_running = iter(requests), self.events(), 0
        while True:
            while n_running < n_at_once and (following := next(waiting, None)) is not None:
                reply_id, request = following
                self.client.generate(request, reply_id)
                n_running += 1
            if not n_running:
                return
            match next(events):
                case OfReply(event=inner) as event:
                    n_running -= isinstance(inner, Finished | Failed)
                    yield event
                case (Failed(fatal=True) | WorkerStopped()) as event:
                    self._raise(event)

    def _raise(self, event: Failed | WorkerStopped) -> NoReturn:
        """Raise the error of an engine that failed, and note whether it lost its model."""
        if isinstance(event, Failed):
            self._is_gone = event.fatal
            raise RequestFailedError(event)
        self._is_gone, self._is_restarting = not event.will_restart, event.will_restart
        raise EngineStoppedError(event)

    def events(self, limit_s: float = math.inf) -> Iterator[Event]:
        """Iterate over all events; never ends by itself.

        Raises:
            EngineTimeoutError: the iteration lasts longer than `limit_s` seconds.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            while self._pending:
                yield self._pending.popleft()
            if time.monotonic() > deadline_s:
                raise EngineTimeoutError(f"it did not finish within {limit_s:g} s")
            self._pending.extend(self.client.poll(POLL_S))

    def _wait_for_a_model(self) -> None:
        """Reload the model if the engine lost it."""
        if self._is_gone and self._configuration is not None:
            self.load(self._configuration)
        elif self._is_restarting:
            self._wait_until_loaded()

    def _wait_until_loaded(self) -> Loaded:
        self._is_restarting = False
        for event in self.events(self.limit_s):
            match event:
                case Loaded():
                    self._loaded = event
                    return event
                case Failed():
                    raise RequestFailedError(event)
                case Waiting(text=text) if text:
                    self._on_wait(text)
                case WorkerStopped(will_restart=True):
                    self._on_restart(event)
                case WorkerStopped():
                    raise EngineStoppedError(event)
        raise AssertionError("the stream of engine events ended")
