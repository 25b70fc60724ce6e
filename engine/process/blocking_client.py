"""An engine that is waited for: load a model, then take one reply after the other, or several.

Commands, benchmarks and checks use it; the screen polls an `EngineClient` itself.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from engine.configuration import Configuration, SpeculationSettings
from engine.errors import WorkerError
from engine.events import Event, Failed, Finished, Loaded, OfReply, Waiting, WorkerStopped
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

POLL_S = 0.25


class RequestFailedError(WorkerError):
    """The engine refused a load or a request, or gave up on it."""

    def __init__(self, event: Failed) -> None:
        super().__init__(event.message)
        self.title = event.title
        self.event = event


class EngineStoppedError(WorkerError):
    """The engine's process ended before what was asked for was done."""

    def __init__(self, event: WorkerStopped) -> None:
        super().__init__(event.message)
        self.title = event.title
        self.event = event


class EngineTimeoutError(WorkerError):
    """The engine did not do in time what was asked for."""

    title = "The engine did not answer in time"


def _ignore(event: object) -> None:
    del event


class BlockingClient:
    """Waits for what is asked of an `EngineClient`, which may be asked other things beside it.

    An engine that ended during a reply has a model again before the next reply begins.

    Args:
        client: The engine; whoever made it closes it.
        limit_s: How long a load or a reply may take, in seconds; it may be changed between two.
        on_restart: Called when the engine's process ended and is being started again.
        on_wait: Called with the text of each `Waiting` while a model is loaded.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        limit_s: float = math.inf,
        on_restart: Callable[[WorkerStopped], None] = _ignore,
        on_wait: Callable[[str], None] = _ignore,
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
        """The end of the last reply; None while it is made."""

    @property
    def last_loaded(self) -> Loaded:
        """The event of the model that was loaded last."""
        assert self._loaded is not None, "load a model first"
        return self._loaded

    def load(self, configuration: Configuration) -> Loaded:
        """Load a model and wait until it is ready.

        Raises:
            RequestFailedError: the engine refused it.
            EngineStoppedError: the engine's process ended, and is not started again.
            EngineTimeoutError: it took longer than the limit.
        """
        self._configuration = configuration
        self._pending.clear()
        self._is_gone = False
        self.client.load(configuration)
        return self._wait_until_loaded()

    def reply(
        self, request: GenerationRequest, speculation: SpeculationSettings | None = None
    ) -> Iterator[Event]:
        """The events of one reply as they come; the last one is `Finished`.

        Args:
            request: What to reply to.
            speculation: Settings to switch to first; None leaves them.

        Raises:
            RequestFailedError: the engine refused the request, or cannot load the model again.
            EngineStoppedError: the engine's process ended.
            EngineTimeoutError: it took longer than the limit.
        """
        self._wait_for_a_model()
        self.finished = None
        if speculation is not None:
            self.client.set_speculation(speculation)
        self.client.generate(request)
        return self.rest_of_reply()

    def rest_of_reply(self) -> Iterator[Event]:
        """Remaining events of a reply whose iteration was interrupted; raises as `reply`.

        There are none where `finished` is set already.
        """
        if self.finished is not None:
            return
        for event in self.events(self.limit_s):
            match event:
                case Failed(fatal=fatal):
                    self._is_gone = fatal
                    raise RequestFailedError(event)
                case WorkerStopped(will_restart=will_restart):
                    self._is_gone, self._is_restarting = not will_restart, will_restart
                    raise EngineStoppedError(event)
            if isinstance(event, Finished):
                self.finished = event
                yield event
                return
            yield event

    def replies(
        self, requests: Iterable[tuple[int, GenerationRequest]], *, n_at_once: int
    ) -> Iterator[OfReply]:
        """What several replies tell, made at once; each ends with `Finished` or `Failed`.

        Args:
            requests: Each with the number of its reply, from 1 on; taken as replies end.
            n_at_once: Replies that are asked for at a time.

        Raises:
            EngineStoppedError: the engine's process ended; the replies under way are lost.
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
                case OfReply(event=told) as event:
                    n_running -= isinstance(told, Finished | Failed)
                    yield event
                case Failed(fatal=True) as event:
                    self._is_gone = True
                    raise RequestFailedError(event)
                case WorkerStopped(will_restart=will_restart) as event:
                    self._is_gone, self._is_restarting = not will_restart, will_restart
                    raise EngineStoppedError(event)

    def events(self, limit_s: float = math.inf) -> Iterator[Event]:
        """Every event as it comes, without an end of its own.

        Raises:
            EngineTimeoutError: the caller still waits after `limit_s` seconds.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            while self._pending:
                yield self._pending.popleft()
            if time.monotonic() > deadline_s:
                raise EngineTimeoutError(f"it did not finish within {limit_s:g} s")
            self._pending.extend(self.client.poll(POLL_S))

    def _wait_for_a_model(self) -> None:
        """Load the model again where the engine lost it."""
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
        raise AssertionError("events never end")
