"""What the benchmarks share: an engine in its process, asked and waited for."""

import sys
import tempfile
from pathlib import Path

from engine.configuration import Configuration
from engine.events import Event, Failed, Finished, Loaded, WorkerStopped
from engine.requests import GenerationRequest
from engine.worker_client import WorkerClient


def load(model: Path, **fields: object) -> WorkerClient:
    """Give an engine with the model loaded; `fields` are those of `Configuration`."""
    log_path = Path(tempfile.gettempdir()) / "kvchat-benchmark.log"
    client = WorkerClient(log_path=log_path)
    client.load(Configuration(model_path=model.resolve(), **fields))  # type: ignore[arg-type]
    wait(client, Loaded)
    return client


def ask(client: WorkerClient, request: GenerationRequest) -> Finished:
    """Give the finished reply to a request."""
    client.generate(request)
    finished = wait(client, Finished)[-1]
    assert isinstance(finished, Finished)
    return finished


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
