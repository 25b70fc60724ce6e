"""The engine's process: a session that is asked and tells through a pipe.

`python -m engine.worker FD` takes the file descriptor of its end of a socket pair. The main thread
loads and generates; a second thread reads the pipe, so that a stop is obeyed in the middle of a
decode and a ping is answered at any time. The process ends when the pipe closes.
"""

import faulthandler
import os
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue

from engine.backends.llama_cpp.log import NativeLog
from engine.cancellation import Cancellation
from engine.errors import EngineError
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    PromptProgress,
    PromptReady,
    RoundFinished,
)
from engine.load import load_session
from engine.requests import GenerationRequest
from engine.session import Session
from engine.speculation.cost import Stopwatch
from engine.speculation.profile import KeptCosts
from engine.worker_protocol import (
    Answer,
    Command,
    Generate,
    Load,
    Ping,
    Pong,
    SetSpeculation,
    Stop,
)

SEND_EVERY_S = 0.06
"""Rounds that end within this time are sent together: the screen shows a frame of them at once, and
each message wakes a process that takes a core from decoding."""

SENT_AT_ONCE = (PromptProgress, PromptReady, Finished)


class Worker:
    """One session behind a pipe."""

    def __init__(self, connection: "Connection[Answer, Command]") -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        self._tasks: SimpleQueue[tuple[Load | Generate, Cancellation]] = SimpleQueue()
        self._cancellations: list[Cancellation] = []
        self._session: Session | None = None
        self._costs: KeptCosts | None = None
        self._log = NativeLog()

    def run(self) -> None:
        """Serve until the pipe closes."""
        threading.Thread(target=self._read_commands, name="commands", daemon=True).start()
        while True:
            task, cancellation = self._tasks.get()
            try:
                self._do(task, cancellation)
            except EngineError as error:
                self._send((Failed(error.title, str(error), fatal=isinstance(task, Load)),))
            self._cancellations.remove(cancellation)

    def _do(self, task: Load | Generate, cancellation: Cancellation) -> None:
        match task:
            case Load(configuration, barred, costs_path):
                self._costs = KeptCosts(configuration, costs_path)
                loaded = load_session(configuration, self._log, barred, self._costs.read())
                self._session = loaded.session
                self._send((loaded.loaded,))
            case Generate(request):
                self._generate(request, cancellation)
                self._keep_costs()

    def _generate(self, request: GenerationRequest, cancellation: Cancellation) -> None:
        if self._session is None:
            raise EngineError("no model is loaded: load one first")
        batch: list[Event] = []
        since = Stopwatch()
        n_rounds = 0
        for event in self._session.generate(request, cancellation):
            batch.append(event)
            n_rounds += isinstance(event, RoundFinished)
            is_due = n_rounds == 1 or since.since_split() >= SEND_EVERY_S
            if isinstance(event, SENT_AT_ONCE) or (isinstance(event, CacheChanged) and is_due):
                since.split()
                self._send(tuple(batch))
                batch.clear()

    def _keep_costs(self) -> None:
        costs = None if self._session is None else self._session.costs()
        if self._costs is not None and costs is not None:
            self._costs.write(costs)

    def _read_commands(self) -> None:
        while True:
            try:
                command = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # the front end is gone; native threads must not outlive it
            self._take(command)

    def _take(self, command: Command) -> None:
        match command:
            case Load() | Generate():
                cancellation = Cancellation()
                self._cancellations.append(cancellation)
                self._tasks.put((command, cancellation))
            case Stop():
                for cancellation in tuple(self._cancellations):
                    cancellation.cancel()
            case SetSpeculation(settings):
                if self._session is not None:
                    self._session.set_speculation(settings)
            case Ping():
                session = self._session
                self._send(Pong(None if session is None else session.busy_predictor()))

    def _send(self, answer: Answer) -> None:
        with self._send_lock:
            try:
                self._connection.send(answer)
            except (BrokenPipeError, OSError):
                os._exit(0)


def main() -> None:
    """Run the worker on the file descriptor that the command line names."""
    faulthandler.enable()
    Worker(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
