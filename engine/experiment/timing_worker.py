"""The process that times runs for `engine.experiment.timing`.

`python -m engine.experiment.timing_worker FD` answers one order after the other at its end of a
socket pair. The weights are loaded once: contexts that differ in settings are opened over them.
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

from engine.backends.base import Backend, Sequence
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
LEAST_STEPS, MOST_STEPS = 2, 256
N_CONTEXTS = 2


class _Context(NamedTuple):
    """A context with its one sequence, whose tokens the next run may go on from."""

    backend: LlamaCppBackend
    sequence: Sequence


class _Contexts:
    """Contexts over weights that are loaded once; the ones used last stay open."""

    def __init__(self) -> None:
        self._log = NativeLog()
        self._weights: LoadedModel | None = None
        self._opened: dict[Configuration, _Context] = {}

    def context(self, configuration: Configuration) -> "_Context":
        """A context for decoding and reading."""
        # Threads change while a context is open.
        key = replace(configuration, n_threads=None, n_threads_batch=None)
        found = self._opened.pop(key, None)
        if found is None:
            while len(self._opened) >= N_CONTEXTS:
                self._opened.pop(next(iter(self._opened))).backend.close()
            if self._weights is None:
                self._weights = LoadedModel(configuration, self._log)
                self._weights.take()  # it stays while no context is open
            backend = LlamaCppBackend(configuration, self._log, model=self._weights)
            found = _Context(backend, backend.open())
        self._opened[key] = found  # used last
        return found


class TimingWorker:
    """Takes times for who holds the other end of a pipe."""

    def __init__(self, connection: "Connection[Ran | EngineError, Order]") -> None:
        self._connection = connection
        self._contexts = _Contexts()
        self._load = ProcessorLoad()

    def serve(self) -> None:
        """Answer orders until the pipe closes."""
        while True:
            try:
                order = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # native threads must not outlive what they work for
            answer: Ran | EngineError
            try:
                seconds = self._seconds(order)
                used = self._load.used()
                answer = Ran(seconds, None if used is None else used[0])
            except EngineError as error:
                answer = error
            self._connection.send(answer)

    def _seconds(self, order: Order) -> float:
        """Open what is missing, then time the run."""
        configuration, work = order.configuration, order.work
        backend, sequence = self._contexts.context(configuration)
        n_threads = configuration.n_threads or 1
        is_read = work.name == "prompt"
        backend.set_threads((configuration.n_threads_batch or n_threads) if is_read else n_threads)
        text = _tokens(backend, work.n_held + max(work.n_tokens, MOST_STEPS))
        _hold(backend, sequence, text[: work.n_held])
        timed = _read if is_read else _write
        return timed(backend, sequence, text[work.n_held :], order)


def _tokens(backend: Backend, n: int) -> list[int]:
    found = backend.vocabulary.tokenize(TEXT, add_special=False, parse_special=False)
    return list(islice(cycle(found), n))


def _hold(backend: Backend, sequence: Sequence, tokens: list[int]) -> None:
    """Have these tokens in the cache, or a few more where they cannot be cut off.

    What is there begins as they do: all runs take the same text.
    """
    n_held, n = len(sequence.tokens), len(tokens)
    if n_held > n and sequence.can_crop(n):
        sequence.crop(n)
    elif n_held > n + n // 4:
        sequence.crop(0)
    _prefill(backend, sequence, tokens[len(sequence.tokens) :])


def _prefill(backend: Backend, sequence: Sequence, tokens: list[int]) -> None:
    for start in range(0, len(tokens), backend.n_batch):
        sequence.prefill(tokens[start : start + backend.n_batch])


def _read(backend: Backend, sequence: Sequence, tokens: list[int], order: Order) -> float:
    """Seconds for each token that is read."""
    began_s = time.perf_counter()
    with _limited(backend, order.limit_s):
        _prefill(backend, sequence, tokens[: order.work.n_tokens])
    return (time.perf_counter() - began_s) / order.work.n_tokens


def _write(backend: Backend, sequence: Sequence, tokens: list[int], order: Order) -> float:
    """Seconds for each token that is written, the first one apart, which wakes the threads."""
    n_done, began_s = 0, time.perf_counter()
    with _limited(backend, order.limit_s):
        sequence.decode(tokens[0])
        began_s = time.perf_counter()
        for token in tokens[1:MOST_STEPS]:
            n_done += 1  # one that is stopped counts whole: it takes at least as long
            sequence.decode(token)
            is_time = time.perf_counter() - began_s >= order.work.seconds
            if n_done >= LEAST_STEPS and is_time:
                break
    return (time.perf_counter() - began_s) / max(n_done, 1)


@contextmanager
def _limited(backend: Backend, limit_s: float) -> Iterator[None]:
    """A context in which decoding is stopped that takes longer; what was done until then counts."""
    timer = threading.Timer(limit_s, backend.abort)
    timer.daemon = True
    timer.start()
    try:
        with suppress(DecodeAborted):
            yield
    finally:
        timer.cancel()
        timer.join()
        backend.clear_abort()


def main() -> None:
    """Take times for who holds the other end of the descriptor that the command line names."""
    faulthandler.enable()
    TimingWorker(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
