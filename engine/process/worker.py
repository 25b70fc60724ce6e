"""The engine's process: a session that is asked and tells through a pipe.

`python -m engine.process.worker FD` takes the file descriptor of its end of a socket pair. The main
thread loads and generates; a second thread reads the pipe, so that a stop is obeyed in the middle
of a decode and a ping is answered at any time. When it is asked to end, or when the pipe closes, it
stops the reply, writes down what it holds and ends; a time limit sees to that.
"""

import contextlib
import faulthandler
import gc
import os
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue

from engine.clock import Stopwatch
from engine.errors import EngineError
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    PromptProgress,
    PromptReady,
    RoundFinished,
    TiersChanged,
)
from engine.generation.session import Session
from engine.load import load_session
from engine.process.cache_service import CacheKeeper
from engine.process.protocol import (
    Answer,
    Close,
    Command,
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
from engine.requests import Cancellation, GenerationRequest
from engine.speculation.cost_profile import KeptCosts

SEND_EVERY_S = 0.06
"""Rounds that end within this time are sent together: the screen shows a frame of them at once, and
each message wakes a process that takes a core from decoding."""

END_LIMIT_S = 5.0
"""Time for writing down what is held when the front end is gone."""

SENT_AT_ONCE = (PromptProgress, PromptReady, Finished, TiersChanged)


class Worker:
    """One session behind a pipe."""

    def __init__(self, connection: "Connection[Answer, Command]") -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        self._tasks: SimpleQueue[Load | tuple[Generate, Cancellation] | Close] = SimpleQueue()
        self._cancellations: list[Cancellation] = []
        self._session: Session | None = None
        self._costs: KeptCosts | None = None
        self._cache = CacheKeeper(lambda event: self._send((event,)))

    def run(self) -> None:
        """Serve until the pipe closes."""
        threading.Thread(target=self._read_commands, name="commands", daemon=True).start()
        while True:
            task = self._tasks.get()
            try:
                self._do(task)
            except EngineError as error:
                self._send((Failed(error.title, str(error), fatal=isinstance(task, Load)),))

    def _do(self, task: Load | tuple[Generate, Cancellation] | Close) -> None:
        match task:
            case Load(configuration, disabled_predictor, costs_path, cache):
                self._costs = KeptCosts(configuration, costs_path)
                loaded = load_session(configuration, disabled_predictor, self._costs.read())
                self._session = loaded.session
                gc.freeze()  # what lives as long as the model is not looked at in every collection
                self._send((loaded.loaded,))
                self._cache.open(loaded, cache)
            case (Generate(request), cancellation):
                try:
                    self._generate(request, cancellation)
                finally:
                    self._cancellations.remove(cancellation)
                    self._keep_what_was_computed()
                self._keep_costs()
            case Close():
                self._cache.close(END_LIMIT_S)
                os._exit(0)  # native threads must not outlive the front end

    def _generate(self, request: GenerationRequest, cancellation: Cancellation) -> None:
        if self._session is None:
            raise EngineError("no model is loaded: load one first")
        batch: list[Event] = []
        since = Stopwatch()
        n_rounds = 0
        try:
            for event in self._session.generate(request, cancellation):
                batch.append(event)
                n_rounds += isinstance(event, RoundFinished)
                is_due = n_rounds == 1 or since.since_split() >= SEND_EVERY_S
                if isinstance(event, SENT_AT_ONCE) or (isinstance(event, CacheChanged) and is_due):
                    since.split()
                    self._send(tuple(batch))
                    batch.clear()
        finally:
            if batch:  # of a reply that failed: what was committed before is part of the chat
                self._send(tuple(batch))

    def _keep_what_was_computed(self) -> None:
        if self._session is not None:
            self._send((TiersChanged(self._session.keep()),))

    def _keep_costs(self) -> None:
        costs = None if self._session is None else self._session.costs()
        if self._costs is not None and costs is not None:
            self._costs.write(costs)

    def _read_commands(self) -> None:
        while True:
            try:
                command = self._connection.recv()
            except (EOFError, OSError):
                self._end()
                return
            self._take(command)

    def _end(self) -> None:
        """Stop what runs, write down what is held and end, soon in any case."""
        if self._session is None:
            os._exit(0)
        limit = threading.Timer(END_LIMIT_S, os._exit, (0,))
        limit.daemon = True
        limit.start()
        self._take(Stop())
        self._tasks.put(Close())

    def _take(self, command: Command) -> None:
        match command:
            case Load():
                self._tasks.put(command)
            case Generate():
                cancellation = Cancellation()
                self._cancellations.append(cancellation)
                self._tasks.put((command, cancellation))
            case Stop():
                for cancellation in tuple(self._cancellations):
                    cancellation.cancel()
            case SetSpeculation(settings):
                if self._session is not None:  # the client says it again behind `Loaded`
                    self._session.set_speculation(settings)
            case Prefetch() | ManageCache() | ForgetOwner():
                self._cache.take(command)
            case Close():
                self._end()
            case Ping():
                session = self._session
                self._send(Pong(None if session is None else session.busy_predictor()))

    def _send(self, answer: Answer) -> None:
        with self._send_lock, contextlib.suppress(OSError):  # who reads the pipe sees its end
            self._connection.send(answer)


def main() -> None:
    """Run the worker on the file descriptor that the command line names."""
    faulthandler.enable()
    Worker(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
