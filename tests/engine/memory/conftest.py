"""What llama.cpp itself lays out."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.dry_run import DryRun, request_of
from tests.support.dry_run_answers import Truth

WeightsOf = Callable[[Path], dict[str, int]]


@pytest.fixture(scope="session")
def dry_run() -> Iterator[DryRun]:
    with DryRun() as runner:
        yield runner


@pytest.fixture(scope="session")
def laid_out_weights() -> Iterator[WeightsOf]:
    """The bytes of a model's weights by the name of the buffer type, without a GPU."""
    truth = Truth(None)

    def ask(path: Path) -> dict[str, int]:
        request = request_of(Configuration(path, 4096), "kvchat")
        answer = truth.ask(str(path), request, 0)
        buffers = answer["buffers"]
        assert isinstance(buffers, dict)
        return {name: parts["model"] for name, parts in buffers.items()}

    yield ask
    for process in truth.processes.values():
        process.kill()
        process.communicate()
