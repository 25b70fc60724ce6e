"""A whole benchmark through failures, crashes and resumption."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from app import paths
from app.bench import benchmark
from app.bench.benchmark import (
    BenchmarkFiles,
    BenchOptions,
    make_units,
    run_benchmark,
    run_units,
    still_to_do,
    without_failures,
)
from app.bench.measure import RunPlan
from app.bench.policies import PolicyChoice, parse_policy
from app.bench.prompt_sets import BenchPrompt, PromptChoice
from app.bench.results import BenchError, PromptRecord, Results
from app.config import Settings
from app.opening import ModelRequest
from engine.configuration import PredictorName, SamplingSettings, SpeculationSettings
from engine.errors import WorkerError
from engine.events import Event, Failed, Finished, WorkerStopped
from engine.model.identity import model_identity
from engine.model.speeds import Speeds
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest
from tests.app.bench.answering_client import CONFIGURATION, AnsweringClient, loaded, steady
from tests.app.bench.made_results import results
from tests.support.drafting_models import drafting_model

POLICY = parse_policy("lookup:fixed:2")
PLAN = RunPlan((POLICY,), 1, 40, 1, SpeculationSettings(), SamplingSettings(), False, True)
PROMPTS = [BenchPrompt("chat", name, name) for name in ("one", "two", "three", "four")]
EMPTY = results(policies=[POLICY.name])
OPTIONS = BenchOptions(PromptChoice(n_prompts=1), PolicyChoice(policies=(POLICY.name,)))
FILES = BenchmarkFiles(None, None, None, "mine")


class Told:
    """Collects what a progress is told."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.prompts: list[tuple[str, int]] = []

    def run_done(self, prompt: object, policy: str) -> None:
        self.runs.append(policy)

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        self.prompts.append((record.prompt, n_done))


class Failing(AnsweringClient):
    """Answers certain prompts with certain events."""

    def __init__(self, **instead: Event) -> None:
        super().__init__(self._answer)
        self.instead = instead

    def _answer(self, request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        event = self.instead.get(request.messages[0].content)
        return steady(request, settings) if event is None else [event]


DIED = WorkerStopped("The engine stopped", "killed by signal 9", -9)


def run(client: AnsweringClient, done: Results = EMPTY) -> tuple[Results, list[Results], Told]:
    kept: list[Results] = []
    told = Told()
    units = still_to_do(make_units([PROMPTS], [0.0]), done)
    final = run_units(loaded(client), units, PLAN, done, progress=told, keep=kept.append)
    return final, kept, told


def test_results_are_kept_after_every_prompt() -> None:
    final, kept, told = run(AnsweringClient())
    assert [len(each.prompts) for each in kept] == [1, 2, 3, 4]
    assert final == kept[-1]
    assert told.prompts == [("one", 2), ("two", 4), ("three", 6), ("four", 8)]
    assert len(told.runs) == 8


@pytest.mark.parametrize(
    ("event", "n_loads"),
    [(Failed("The context is full", "raise --ctx"), 1), (DIED, 2)],
    ids=["refused", "died"],
)
def test_a_prompt_that_fails_or_ends_the_engine_does_not_end_the_benchmark(
    event: Failed | WorkerStopped, n_loads: int
) -> None:
    client = Failing(two=event)
    final, _, _ = run(client)
    failure = f"{event.title}: {event.message}"
    assert [each.failure for each in final.prompts] == [None, failure, None, None]
    assert client.n_loads == n_loads


def test_an_engine_that_keeps_dying_ends_the_benchmark_and_what_was_done_is_kept() -> None:
    client = Failing(two=DIED, three=DIED, four=DIED)
    kept: list[Results] = []
    with pytest.raises(WorkerError, match="died on 3 prompts in a row"):
        run_units(
            loaded(client),
            make_units([PROMPTS], [0.0]),
            PLAN,
            EMPTY,
            progress=Told(),
            keep=kept.append,
        )
    assert [each.failure is None for each in kept[-1].prompts] == [True, False, False, False]


def test_a_hung_engine_that_the_watchdog_restarts_is_waited_for() -> None:
    class Restarting(Failing):
        """Comes back by itself, as the client does with a hung engine."""

        def _answer(
            self, request: GenerationRequest, settings: SpeculationSettings
        ) -> Sequence[Event]:
            events = super()._answer(request, settings)
            return [*events, self.loaded(CONFIGURATION)] if len(events) == 1 else events

    client = Restarting(two=replace(DIED, will_restart=True))
    final, _, _ = run(client)
    assert [each.failure is None for each in final.prompts] == [True, False, True, True]
    assert client.n_loads == 1


def test_results_that_cannot_be_kept_end_the_benchmark() -> None:
    def full(results: Results) -> None:
        raise BenchError("the disk is full")

    units = make_units([PROMPTS], [0.0])
    with pytest.raises(BenchError, match="disk is full"):
        run_units(loaded(AnsweringClient()), units, PLAN, EMPTY, progress=Told(), keep=full)


def test_what_is_resumed_leaves_out_what_is_done_and_tries_failures_again() -> None:
    first, _, _ = run(Failing(two=Failed("No", "not now")))
    done = without_failures(replace(first, prompts=first.prompts[:3]))
    final, _, told = run(AnsweringClient(), done)
    assert [name for name, _ in told.prompts] == ["two", "four"]
    assert [each.prompt for each in final.prompts] == ["one", "three", "two", "four"]
    assert final.elapsed_s > done.elapsed_s


@pytest.mark.parametrize(
    ("case", "typed", "preset"),
    [
        ("plain", {}, ""),
        ("preset", {"preset": "balanced"}, "balanced"),
        ("threads", {"n_threads": 1}, None),
        ("kv", {"kv": "q8_0"}, None),
        ("noise", {}, None),
    ],
)
def test_a_speed_is_kept_with_the_preset_it_was_measured_with_and_not_with_other_settings(
    case: str,
    typed: dict[str, Any],
    preset: str | None,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = drafting_model(home / "models" / f"{case}.gguf", len(case))
    rates = cycle([1.0, 2.0] if case == "noise" else [1.0])

    def answer(request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        *events, end = steady(request, settings)
        if settings.predictor is not PredictorName.OFF:
            return [*events, end]
        assert isinstance(end, Finished)
        stats = replace(end.stats, decode_tps=100.0 * next(rates))
        return [*events, replace(end, stats=stats)]

    @contextmanager
    def opened(*_: object) -> Iterator[BlockingClient]:
        yield loaded(AnsweringClient(answer))

    monkeypatch.setattr(benchmark, "loaded_engine", opened)
    assert run_benchmark(OPTIONS, ModelRequest(str(model), **typed), FILES, Settings()) == 0
    speed = Speeds(paths.speeds_path()).of(model_identity(model))
    assert (None if speed is None else speed.preset) == preset
    assert (paths.presets_dir() / "mine.toml").exists() is (case != "noise")
