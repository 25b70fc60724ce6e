"""The engine's process: a session that receives commands and sends events through a pipe.

`python -m engine.process.worker FD` expects the file descriptor of its end of a socket pair. The
main thread loads and generates, several replies in parallel if requested. A second thread reads
the pipe, so that a stop interrupts a decode and a ping is always answered. After `Close`, or when
the pipe closes, the process stops the replies, saves its cache and exits within `END_LIMIT_S`.
"""

import contextlib
import faulthandler
import gc
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING

from engine.background import PAUSES_S, ThreadFault, start_thread
from engine.clock import Stopwatch
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    OfReply,
    PromptProgress,
    PromptReady,
    RoundFinished,
    TiersChanged,
    TokensCounted,
)
from engine.images import ImageError
from engine.process.cache_service import CacheService
from engine.process.protocol import (
    Answer,
    Close,
    Command,
    CountTokens,
    ForgetOwner,
    Generate,
    Load,
    ManageCache,
    Ping,
    Pong,
    Prefetch,
    SetSpeculation,
    Stop,
)
from engine.requests import Cancellation
from engine.speculation.cost_profile import SavedCosts

if TYPE_CHECKING:
    from engine.backends.server.session import ServedGeneration, ServerSession
    from engine.generation.scheduler import Generation
    from engine.generation.session import Session

SEND_EVERY_S = 0.06
"""Rounds that end within this time are sent together: each message wakes the front end, which
takes a core from decoding."""

END_LIMIT_S = 5.0
"""Time limit for saving the cache when the front end is gone."""

SERVER_KEEPS = "the server manages its own cache"
SENT_AT_ONCE = (PromptProgress, PromptReady, Finished, TiersChanged)


class _SaveEnded:
    """The tiers are open: save the states of earlier replies."""


_Task = Load | tuple[Generate, Cancellation] | _SaveEnded | Close


@dataclass(slots=True)
class _Reply:
    """A running reply and its unsent events."""

    reply_id: int
    generation: "Generation | ServedGeneration"
    batch: list[Event] = field(default_factory=list)
    since: Stopwatch = field(default_factory=Stopwatch)
    n_rounds: int = 0

    def collect(self) -> bool:
        """Add new events to the batch; return whether to send it now."""
        is_due = False
        for event in self.generation.take():
            self.batch.append(event)
            self.n_rounds += isinstance(event, RoundFinished)
            is_time = self.n_rounds == 1 or self.since.since_split() >= SEND_EVERY_S
            is_due |= isinstance(event, SENT_AT_ONCE)
            is_due |= isinstance(event, CacheChanged) and is_time
        return is_due or self.generation.is_over


class Worker:
    """Serves one session to the process at the other end of a pipe."""

    def __init__(self, connection: "Connection[Answer, Command]") -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._cancellations: list[tuple[int, Cancellation]] = []
        self._replies: list[_Reply] = []
        self._session: Session | ServerSession | None = None
        self._costs: SavedCosts | None = None
        self._cache = CacheService(
            lambda event: self._send((event,)), lambda: self._tasks.put(_SaveEnded())
        )

    def run(self) -> None:
        """Serve until the pipe closes."""
        start_thread(
            self._read_commands, name="commands", on_fault=self._lose_command, pauses_s=PAUSES_S
        )
        while True:
            while not (self._replies and self._tasks.empty()):
                task = self._tasks.get()
                try:
                    self._do(task)
                except EngineError as error:
                    failed = Failed(error.title, str(error), fatal=isinstance(task, Load))
                    self._emit(task[0].reply_id if isinstance(task, tuple) else 0, [failed])
            self._go_on()

    def _do(self, task: _Task) -> None:
        match task:
            case Load():
                if task.configuration.server is None:
                    self._load_here(task)
                else:
                    self._load_server(task.configuration)
            case (Generate(request, reply_id), cancellation):
                try:
                    if self._session is None:
                        raise EngineError("no model is loaded: load one first")
                    generation = self._session.begin(request, cancellation)
                except EngineError:
                    self._cancellations.remove((reply_id, cancellation))
                    raise
                self._replies.append(_Reply(reply_id, generation))
            case _SaveEnded():
                self._save_states()
            case Close():
                while self._replies:
                    self._go_on()
                self._cache.close(END_LIMIT_S)
                os._exit(0)  # native threads must not outlive the front end

    def _load_here(self, task: Load) -> None:
        from engine.load import load_session  # imports llama.cpp, which no server needs

        self._costs = SavedCosts.of(task.configuration, task.costs_path)
        costs = self._costs.read()
        loaded = load_session(task.configuration, costs)
        self._session = loaded.session
        gc.freeze()  # collections skip the objects that live as long as the model
        self._send((loaded.loaded,))
        self._cache.open(loaded, task.cache)

    def _load_server(self, configuration: Configuration) -> None:
        from engine.backends.server.session import ServerSession

        session = ServerSession(configuration, emit=lambda event: self._send((event,)))
        self._session = session
        self._send((session.loaded,))
        session.watch()
        self._cache.refuse(SERVER_KEEPS)

    def _go_on(self) -> None:
        """Run one step of all running replies and send the events that are due."""
        session = self._session
        assert session is not None
        session.step()
        for reply in tuple(self._replies):
            if reply.collect():
                reply.since.split()
                self._emit(reply.reply_id, reply.batch)
                reply.batch.clear()
            if not reply.generation.is_over:
                continue
            self._replies.remove(reply)
            self._cancellations.remove((reply.reply_id, reply.generation.cancellation))
            if (fault := reply.generation.fault) is not None:
                self._emit(reply.reply_id, [Failed(fault.title, str(fault))])
            self._save_states()
            if self._costs is not None and (costs := session.costs()) is not None:
                self._costs.write(costs)

    def _emit(self, reply_id: int, events: Sequence[Event]) -> None:
        if events:
            self._send(tuple(OfReply(reply_id, each) if reply_id else each for each in events))

    def _save_states(self) -> None:
        if self._session is not None:
            self._send((TiersChanged(self._session.keep()),))

    def _read_commands(self) -> None:
        while True:
            try:
                command = self._connection.recv()
            except (EOFError, OSError):
                self._end()
                return
            self._handle(command)

    def _lose_command(self, fault: ThreadFault) -> None:
        """Exit if commands are no longer read; the log has the traceback."""
        if not fault.will_restart:
            self._end()

    def _end(self) -> None:
        """Stop the replies, save the cache and exit within `END_LIMIT_S`."""
        if self._session is None:
            os._exit(0)
        start_thread(_exit_in_time, name="end")
        self._handle(Stop())
        self._tasks.put(Close())

    def _handle(self, command: Command) -> None:
        match command:
            case Load():
                self._tasks.put(command)
            case Generate():
                cancellation = Cancellation()
                self._cancellations.append((command.reply_id, cancellation))
                self._tasks.put((command, cancellation))
            case Stop(reply_id):
                self._cancel(reply_id)
            case SetSpeculation(settings):
                if self._session is not None:  # the client resends it after `Loaded`
                    self._session.set_speculation(settings)
            case Prefetch() | ManageCache() | ForgetOwner():
                self._cache.submit(command)
            case CountTokens():
                # A long text takes a second; this thread must see a stop meanwhile.
                start_thread(partial(self._count, command), name="count")
            case Close():
                self._end()
            case Ping():
                self._send(Pong())

    def _count(self, command: CountTokens) -> None:
        """Answer even after an error: the client waits for it."""
        session, n_tokens = self._session, None
        try:
            if session is not None:
                n_tokens = session.count_tokens(command.text)
        except ImageError:
            n_tokens = 0  # sending the message reports the error
        finally:
            self._send((TokensCounted(command.key, n_tokens),))

    def _cancel(self, reply_id: int | None) -> None:
        for of_reply, cancellation in tuple(self._cancellations):
            if reply_id in (None, of_reply):
                cancellation.cancel()

    def _send(self, answer: Answer) -> None:
        with self._send_lock, contextlib.suppress(OSError):  # the reading thread sees a closed pipe
            self._connection.send(answer)


def _exit_in_time() -> None:
    """Exit even if the replies or the cache do not finish."""
    time.sleep(END_LIMIT_S)
    os._exit(0)


def main() -> None:
    """Run the worker on the file descriptor given on the command line."""
    faulthandler.enable()
    Worker(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
