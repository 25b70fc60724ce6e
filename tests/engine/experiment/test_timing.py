"""Times of a real model: what is timed, what fails, and what ends."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.experiment.timing import (
    EngineDiedError,
    OutOfTimeError,
    TimingProcess,
    Work,
)

WRITING = Work("near", 32, seconds=0.05)
READING = Work("prompt", 32, 48)
PATIENCE_S = 120.0

pytestmark = pytest.mark.model
Run = Callable[..., float]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[TimingProcess]:
    machine = TimingProcess(tmp_path / "worker.log", lambda: None)
    yield machine
    machine.close()


def processes() -> list[psutil.Process]:
    return psutil.Process().children()


@pytest.fixture
def run(machine: TimingProcess) -> Run:
    def seconds(configuration: Configuration, work: Work, limit_s: float = PATIENCE_S) -> float:
        until_s = time.monotonic() + PATIENCE_S
        return machine.run(configuration, work, limit_s, until_s).seconds

    return seconds


@pytest.fixture
def start(starter_path: Path) -> Configuration:
    return Configuration(starter_path, 512, n_threads=1)


@pytest.mark.slow
def test_everything_that_is_tried_is_timed_over_one_load(run: Run, start: Configuration) -> None:
    times = [run(start, work) for work in (READING, WRITING) * 2]
    assert all(0 < seconds < 10 for seconds in times)
    [process] = processes()
    for changed in (
        replace(start, n_threads=2, n_threads_batch=2),
        replace(start, flash_attention="off", n_ubatch=64),
        replace(start, type_k="q8_0", type_v="q8_0"),
    ):
        assert run(changed, WRITING) > 0
        assert run(changed, READING) > 0
    assert processes() == [process]


def test_a_run_is_stopped_at_its_limit_and_the_next_one_is_right(
    run: Run, start: Configuration
) -> None:
    long = Work("near", 32, seconds=60.0)
    run(start, WRITING)
    assert run(start, replace(READING, n_tokens=200), limit_s=0.001) > 0
    run(start, long, limit_s=0.2)
    for work in (READING, WRITING):
        assert 0 < run(start, work) < 10


def test_what_cannot_be_opened_reports_why_and_the_rest_goes_on(
    run: Run, start: Configuration
) -> None:
    with pytest.raises(EngineError, match="flash attention off"):
        run(replace(start, type_v="q8_0", flash_attention="off"), WRITING)
    assert run(start, WRITING) > 0


def test_a_process_that_dies_is_recorded_and_started_again(run: Run, start: Configuration) -> None:
    run(start, WRITING)
    [process] = processes()
    process.kill()
    with pytest.raises(EngineDiedError, match="SIGKILL"):
        run(start, WRITING)
    assert run(start, WRITING) > 0


def test_the_end_of_the_time_ends_the_process_whatever_it_does(
    start: Configuration, machine: TimingProcess
) -> None:
    with pytest.raises(OutOfTimeError):
        machine.run(start, WRITING, PATIENCE_S, time.monotonic())
    assert not processes()
