"""A benchmark in a given time: where it ends, goes on, and what it leaves open."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from app.bench import short
from app.bench.results import read_results
from app.bench.short import LEAST_PROMPTS, N_PROMPTS, ShortBenchmark, policies_for
from engine.configuration import Configuration, ControllerName, DraftConfiguration, PredictorName
from engine.events import Loaded
from engine.process.blocking_client import BlockingClient
from tests.app.bench.answering_client import CONFIGURATION, AnsweringClient, loaded


class Suffixes(AnsweringClient):
    """An engine that can draft from suffixes too."""

    def loaded(self, configuration: Configuration) -> Loaded:
        return replace(super().loaded(configuration), predictors=("off", "lookup", "suffix"))


Bench = Callable[..., tuple[ShortBenchmark, int]]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> Bench:
    model = tmp_path / CONFIGURATION.model_path.name
    model.write_bytes(b"GGUF")
    n_loads = []

    @contextmanager
    def opened(_: Configuration, __: object) -> Iterator[BlockingClient]:
        n_loads.append(1)
        yield loaded(Suffixes())

    monkeypatch.setattr(short, "loaded_engine", opened)

    def run(
        budget_s: float, *, path: Path = tmp_path / "drafts.json"
    ) -> tuple[ShortBenchmark, int]:
        n_loads.clear()
        benchmark = ShortBenchmark(
            replace(CONFIGURATION, model_path=model), path, budget_s, notes.append
        )
        for _ in benchmark.run():
            pass
        return benchmark, len(n_loads)

    return run


def test_without_time_nothing_is_measured_and_everything_stays_open(bench: Bench) -> None:
    benchmark, _ = bench(0.0)
    assert benchmark.result is not None
    assert benchmark.n_measured == 0
    assert benchmark.result.advice.is_open
    assert not benchmark.result.is_complete
    assert "there was time for 0 prompts only" in benchmark.result.advice.reason


def test_with_time_every_prompt_is_measured_once_and_a_second_run_loads_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    benchmark, n_loads = bench(1e6)
    assert (benchmark.n_measured, n_loads) == (2 * N_PROMPTS, 1)
    assert benchmark.result is not None
    assert benchmark.result.is_complete
    assert benchmark.result.n_prompts >= LEAST_PROMPTS
    sets = [each.set_name for each in read_results(tmp_path / "drafts.json").prompts]
    assert sets[:4] == ["grounded", "chat", "grounded", "chat"]
    again, n_loads = bench(1e6)
    assert (again.n_measured, n_loads) == (0, 0)
    assert again.result == benchmark.result


def test_a_stopped_one_goes_on(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "stopped.json"
    stopped, _ = bench(0.0, path=path)
    assert stopped.n_measured == 0
    whole, _ = bench(1e6, path=path)
    kept = read_results(path)
    short.write_results(path, replace(kept, prompts=kept.prompts[:3]))
    rest, _ = bench(1e6, path=path)
    assert rest.n_measured == 2 * N_PROMPTS - 3
    assert rest.result is not None
    assert whole.result is not None
    assert rest.result.n_prompts == whole.result.n_prompts


def test_a_damaged_file_is_measured_anew_and_a_blocked_one_is_told(
    bench: Bench, tmp_path: Path, notes: list[str]
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    assert bench(1e6, path=damaged)[0].n_measured == 2 * N_PROMPTS
    blocked = damaged / "below.json"
    assert bench(1e6, path=blocked)[0].result is not None
    assert "cannot be written" in notes[-1]


def test_what_drafts_now_is_compared_with_the_rule_and_a_look_up() -> None:
    assert policies_for(CONFIGURATION) == ("suffix:auto", "lookup:fixed:3")
    settings = CONFIGURATION.speculation
    fixed = replace(settings, predictor=PredictorName.LOOKUP, controller=ControllerName.FIXED)
    now = replace(CONFIGURATION, speculation=replace(fixed, n_draft=5))
    assert policies_for(now) == ("lookup:fixed:5", "suffix:auto", "lookup:fixed:3")
    off = replace(CONFIGURATION, speculation=replace(settings, predictor=PredictorName.OFF))
    assert policies_for(off) == ("suffix:auto", "lookup:fixed:3")
    drafted = replace(CONFIGURATION, draft=DraftConfiguration(Path("d.gguf"), 512))
    assert policies_for(drafted)[1] == "combined:auto"
