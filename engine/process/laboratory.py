"""A measurement of cache types in a separate process.

`python -m engine.process.laboratory FD` expects the file descriptor of its end of a socket pair.
The main thread measures; a second one reads the pipe, so that a stop interrupts a batch, and exits
when the pipe closes. A crash in native code loses only the running group: the client has the
report of the earlier ones.
"""

import contextlib
import faulthandler
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, Self

from engine.background import PAUSES_S, start_thread
from engine.errors import EngineError, WorkerError
from engine.load import open_laboratory
from engine.process.watchdog import describe_exit, start_piped, writable_log
from engine.quality.laboratory import Laboratory, LaboratoryEvent
from engine.quality.request import LaboratoryRequest

LABORATORY_COMMAND = (sys.executable, "-P", "-m", "engine.process.laboratory")

Order = LaboratoryRequest | Literal["stop"]
Outcome = LaboratoryEvent | EngineError


class LaboratoryProcess:
    """Iterator over the events of a measurement; `LaboratoryFinished` is the last.

    Args:
        request: What to measure.
        log_path: Log for crash messages of the process; overwritten.
    """

    def __init__(self, request: LaboratoryRequest, log_path: Path) -> None:
        self._connection: Connection[Order, Outcome]
        with contextlib.suppress(OSError):  # on a read-only system it goes elsewhere
            log_path.unlink(missing_ok=True)
        log_path, _ = writable_log(log_path)
        self._popen, self._connection = start_piped(LABORATORY_COMMAND, log_path)
        self._log_path = log_path
        self._is_over = False
        self._send(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[LaboratoryEvent]:
        return self

    def __next__(self) -> LaboratoryEvent:
        """Wait for the next event and return it.

        Raises:
            EngineError: the measurement failed; the error is the one raised in the process.
            WorkerError: the process ended unexpectedly.
        """
        if self._is_over:
            raise StopIteration
        try:
            received = self._connection.recv()
        except (EOFError, OSError) as error:
            self._is_over = True
            code = self._popen.wait()
            if code == 0:
                raise StopIteration from error
            raise WorkerError(
                f"the measurement stopped: {describe_exit(code)}. Completed measurements are "
                "saved. Measure fewer cache types, or set a smaller --ctx; see the log "
                f"{self._log_path}"
            ) from error
        if isinstance(received, EngineError):
            raise received
        return received

    def stop(self) -> None:
        """Stop the measurement; `LaboratoryFinished` follows with the results so far."""
        self._send("stop")

    def close(self) -> None:
        """Kill the process if it still runs."""
        self._is_over = True
        self._connection.close()
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()

    def _send(self, order: Order) -> None:
        with contextlib.suppress(OSError):  # `__next__` reports a process that ended
            self._connection.send(order)


class _Worker:
    def __init__(self, connection: "Connection[Outcome, Order]") -> None:
        self._connection = connection
        self._laboratory: Laboratory | None = None
        self._is_stopped = False

    def run(self) -> None:
        """Run the measurement that the first message requests, then exit."""
        request = self._connection.recv()
        assert isinstance(request, LaboratoryRequest)
        start_thread(self._read, name="orders", pauses_s=PAUSES_S)
        try:
            laboratory = open_laboratory(request)
            self._laboratory = laboratory
            if self._is_stopped:
                laboratory.stop()
            for event in laboratory.run():
                self._connection.send(event)
        except EngineError as error:
            self._connection.send(error)
        self._connection.close()
        os._exit(0)  # native threads must not outlive what they work for

    def _read(self) -> None:
        while True:
            try:
                self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            self._is_stopped = True
            if self._laboratory is not None:
                self._laboratory.stop()


def main() -> None:
    """Run the measurement process on the file descriptor given on the command line."""
    faulthandler.enable()
    _Worker(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
