"""The process that takes times, without a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.tuning import worker
from engine.tuning.machine import Order
from engine.tuning.settings import Work, WorkName

N_HELD = 128

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture
def contexts() -> Iterator[worker._Contexts]:
    contexts = worker._Contexts()
    yield contexts
    for context in contexts._opened.values():
        context.backend.close()


@pytest.mark.parametrize("name", ["deep", "prompt"])
def test_a_long_chat_is_read_once_for_all_runs_of_a_context(
    name: WorkName,
    contexts: worker._Contexts,
    starter_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_read: list[int] = []
    prefill = worker._prefill

    def counted(backend: object, sequence: object, tokens: list[int]) -> None:
        n_read.append(len(tokens))
        prefill(backend, sequence, tokens)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "_prefill", counted)
    serving = worker.TimingWorker.__new__(worker.TimingWorker)
    serving._contexts = contexts
    n_timed = 16 if name == "prompt" else 0
    order = Order(
        Configuration(starter_path, 512, n_threads=1),
        Work(name, N_HELD, n_timed, seconds=0.01),
        60.0,
    )
    for _ in range(3):
        assert serving._seconds(order) > 0
    assert sum(n_read) - 3 * n_timed == N_HELD
