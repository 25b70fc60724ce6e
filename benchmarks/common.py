"""What the benchmarks share: an engine in its process, asked and waited for."""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from engine.cache.report import CacheSettings
from engine.configuration import Configuration
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    Loaded,
    TokensCommitted,
    WorkerStopped,
)
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest


@dataclass(frozen=True, slots=True)
class Timed:
    """One reply, and how long its first token took from the moment of asking."""

    first_token_s: float
    reuse: CacheChanged
    """Where the prompt's tokens came from."""
    finished: Finished


def load(model: Path, *, cache: CacheSettings | None = None, **fields: object) -> WorkerClient:
    """Give an engine with the model loaded; `fields` are those of `Configuration`."""
    log_path = Path(tempfile.gettempdir()) / "kvchat-benchmark.log"
    client = WorkerClient(log_path=log_path, cache=cache)
    client.load(Configuration(model_path=model.resolve(), **fields))  # type: ignore[arg-type]
    wait(client, Loaded)
    return client


def ask(client: WorkerClient, request: GenerationRequest) -> Finished:
    """Give the finished reply to a request."""
    client.generate(request)
    finished = wait(client, Finished)[-1]
    assert isinstance(finished, Finished)
    return finished


def ask_timed(client: WorkerClient, request: GenerationRequest) -> Timed:
    """Give a reply with the time to its first token, as the front end sees it."""
    started = time.perf_counter()
    client.generate(request)
    first_token_s, reuse = None, None
    while True:
        for event in client.poll(1.0):
            match event:
                case TokensCommitted() if first_token_s is None:
                    first_token_s = time.perf_counter() - started
                case CacheChanged() if reuse is None:
                    reuse = event
                case Finished():
                    if first_token_s is None or reuse is None:
                        sys.exit("a reply ended before its first token: ask something else")
                    return Timed(first_token_s, reuse, event)
                case Failed() | WorkerStopped():
                    sys.exit(f"{event.title}: {event.message}")
                case _:
                    pass


def wait(client: WorkerClient, last: type[Event]) -> list[Event]:
    """Collect events up to one of a type; a failure ends the benchmark."""
    events: list[Event] = []
    while True:
        for event in client.poll(1.0):
            events.append(event)
            if isinstance(event, last):
                return events
            if isinstance(event, Failed | WorkerStopped):
                sys.exit(f"{event.title}: {event.message}")


def tokens_per_second(finished: Finished) -> float:
    """Give the speed behind the prefill, the time between rounds included."""
    if finished.stats.decode_tps is None:
        sys.exit("nothing was generated, so there is no speed")
    return finished.stats.decode_tps
