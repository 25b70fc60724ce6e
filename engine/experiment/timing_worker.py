"""The process that times runs for `engine.experiment.timing`.

`python -m engine.experiment.timing_worker FD` answers one order after the other at its end of a
socket pair. The weights are loaded once; contexts with other settings are opened over them.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import NamedTuple

from engine.backends.base import Sequence
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.model import LoadedModel
from engine.configuration import Configuration
from engine.errors import DecodeAborted, EngineError
from engine.experiment.timing import Order, Ran
from engine.generation.cpu_load import ProcessorLoad

TEXT = (
    "The harbour town had three bakeries, and each of them claimed to be the oldest: the first by "
    "the church, the second at the market, the third on the quay, where fishermen bought their "
    "bread at four in the morning. One winter the mayor decided to settle the matter. He asked the "
    "keeper of the archive, who found an old letter with the seal of a king from far away. "
)
MIN_STEPS, MAX_STEPS = 2, 256
N_CONTEXTS = 2


class _Context(NamedTuple):
    """A context with one sequence; the next run may continue its tokens."""

    backend: LlamaCppBackend
    sequence: Sequence

    def hold(self, tokens: list[int]) -> None:
        """Have these tokens in the cache, or a few more if they cannot be cropped.

        All runs use the same text, so the cached tokens begin with them.
        """
        n_held, n = len(self.sequence.tokens), len(tokens)
        if n_held > n and self.sequence.can_crop(n):
            self.sequence.crop(n)
        elif n_held > n + n // 4:
            self.sequence.crop(0)
        self.prefill(tokens[len(self.sequence.tokens) :])

    def prefill(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), self.backend.n_batch):
            self.sequence.prefill(tokens[start : start + self.backend.n_batch])

    def timed_prefill(self, tokens: list[int], limit_s: float) -> float:
        """Seconds per token."""
        start_s = time.perf_counter()
        with self._limited(limit_s):
            self.prefill(tokens)
        return (time.perf_counter() - start_s) / len(tokens)

    def timed_decode(self, tokens: list[int], seconds: float, limit_s: float) -> float:
        """Seconds per token, without the first one, which wakes the threads."""
        n_done, start_s = 0, time.perf_counter()
        with self._limited(limit_s):
            self.sequence.decode(tokens[0])
            start_s = time.perf_counter()
            for token in tokens[1:MAX_STEPS]:
                n_done += 1  # a stopped one counts whole: it takes at least as long
                self.sequence.decode(token)
                if n_done >= MIN_STEPS and time.perf_counter() - start_s >= seconds:
                    break
        return (time.perf_counter() - start_s) / max(n_done, 1)

    @contextmanager
    def _limited(self, limit_s: float) -> Iterator[None]:
        """Stop the decoding in this block when it takes longer."""
        timer = threading.Timer(limit_s, self.backend.abort)
        timer.daemon = True
        timer.start()
        try:
            with suppress(DecodeAborted):
                yield
        finally:
            timer.cancel()
            timer.join()
            self.backend.clear_abort()


class TimingWorker:
    """Times runs for the other end of a pipe."""

    def __init__(self, connection: "Connection[Ran | EngineError, Order]") -> None:
        self._connection = connection
        self._load = ProcessorLoad()
        self._log = NativeLog()
        self._weights: LoadedModel | None = None
        self._contexts: dict[Configuration, _Context] = {}
        """The ones used last."""

    def serve(self) -> None:
        """Answer orders until the pipe closes."""
        while True:
            try:
                order = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # native threads must not outlive their parent
            try:
                seconds, used = self._seconds(order), self._load.used()
                self._connection.send(Ran(seconds, None if used is None else used[0]))
            except EngineError as error:
                self._connection.send(error)

    def _seconds(self, order: Order) -> float:
        configuration, work = order.configuration, order.work
        context = self._context(configuration)
        is_prefill = work.name == "prompt"
        n_threads = configuration.n_threads or 1
        context.backend.set_threads(
            (configuration.n_threads_batch or n_threads) if is_prefill else n_threads
        )
        vocabulary = context.backend.vocabulary
        text = vocabulary.tokenize(TEXT, add_special=False, parse_special=False)
        tokens = list(islice(cycle(text), work.n_held + max(work.n_tokens, MAX_STEPS)))
        context.hold(tokens[: work.n_held])
        rest = tokens[work.n_held :]
        if is_prefill:
            return context.timed_prefill(rest[: work.n_tokens], order.limit_s)
        return context.timed_decode(rest, work.seconds, order.limit_s)

    def _context(self, configuration: Configuration) -> _Context:
        # Threads change while a context is open.
        key = replace(configuration, n_threads=None, n_threads_batch=None)
        found = self._contexts.pop(key, None)
        if found is None:
            while len(self._contexts) >= N_CONTEXTS:
                self._contexts.pop(next(iter(self._contexts))).backend.close()
            if self._weights is None:
                self._weights = LoadedModel(configuration, self._log)
                self._weights.take()  # it stays while no context is open
            backend = LlamaCppBackend(configuration, self._log, model=self._weights)
            found = _Context(backend, backend.open())
        self._contexts[key] = found
        return found


def main() -> None:
    """Serve the file descriptor of the command line."""
    faulthandler.enable()
    TimingWorker(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
