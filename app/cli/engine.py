"""The engine of a command: loaded, with what it says on the way on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.cli.console import tell

if TYPE_CHECKING:
    from engine.configuration import Configuration
    from engine.events import Event, Loaded
    from engine.process.client import WorkerClient

POLL_S = 0.25


@contextmanager
def loaded_engine(
    configuration: "Configuration",
) -> "Iterator[tuple[WorkerClient, Loaded]]":
    """An engine that has loaded a model, and what it said of it; it ends with the block.

    Raises:
        WorkerError: the model cannot be loaded.
    """
    from app import paths
    from engine.process.client import WorkerClient

    client = WorkerClient(
        log_path=paths.worker_log_path(),
        memory_path=paths.build_memory_path(),
        costs_path=paths.costs_path(),
    )
    try:
        client.load(configuration)
        yield client, _loaded(client)
    finally:
        client.close()


def _loaded(client: "WorkerClient") -> "Loaded":
    from engine.events import Loaded

    while True:
        for event in client.poll(POLL_S):
            raise_on_failure(event)
            if isinstance(event, Loaded):
                for note in event.notes:
                    tell(f"kvchat: {note}")
                return event


def raise_on_failure(event: "Event") -> None:
    """Say that the engine starts again.

    Raises:
        WorkerError: the event says that the request or the engine failed.
    """
    from engine.errors import WorkerError
    from engine.events import Failed, WorkerStopped

    match event:
        case Failed(title, message) | WorkerStopped(title, message, will_restart=False):
            raise WorkerError(f"{title}: {message}")
        case WorkerStopped(title, message):
            tell(f"kvchat: {title}: {message}")
