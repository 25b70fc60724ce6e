"""One benchmark from the options to the report and the preset; what the command does."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Protocol

from rich.text import Text

from app import paths
from app.bench.measure import RunPlan, measure_prompt, n_runs
from app.bench.policies import Policy, PolicyChoice
from app.bench.prompt_sets import BenchPrompt, PromptChoice, read_prompts
from app.bench.results import (
    BenchError,
    BenchSubject,
    PromptRecord,
    Results,
    check_same_subject,
    read_results,
    this_machine,
    write_results,
    write_text,
)
from app.bench.summary import SetSummary, summarise
from app.bench.table import ConsoleProgress, report
from app.bench.verdict import find_target, noise_warning, recommend, write_policy
from app.config import Settings
from app.console import console, html_page
from app.format import counted
from app.opening import ModelRequest, loaded_engine, open_here
from engine.configuration import Configuration, PredictorName
from engine.errors import EngineError, WorkerError
from engine.events import Loaded
from engine.model.identity import model_identity
from engine.model.speeds import ModelSpeed, Speeds
from engine.process.blocking_client import BlockingClient, EngineStoppedError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
MOST_CRASHES = 3
"""Prompts in a row on which the engine may die."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure."""

    prompts: PromptChoice = field(default_factory=PromptChoice)
    policies: PolicyChoice = field(default_factory=PolicyChoice)
    n_pairs: int = 2
    n_tokens: int = 128
    """Maximum tokens of a reply."""
    temperatures: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, slots=True)
class BenchmarkFiles:
    """Where results come from and go to; None is nowhere."""

    json: Path | None
    html: Path | None
    resume: Path | None
    """Results of an earlier run; they are continued in this file where `json` names no other."""
    preset: str | None
    """Name or path of the preset that is set as recommended."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A prompt at a temperature; `index` is its number in its set."""

    prompt: BenchPrompt
    temperature: float
    index: int

    @property
    def key(self) -> tuple[str, str, float]:
        """What identifies its record."""
        return self.prompt.set_name, self.prompt.name, self.temperature


class BenchmarkProgress(Protocol):
    """Shows how far a benchmark is."""

    def run_done(self, prompt: BenchPrompt, policy: str) -> None:
        """A reply was made."""
        ...

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        """All runs of a prompt are in; `n_done` replies are done or left out by now."""
        ...


def run_benchmark(
    options: BenchOptions, request: ModelRequest, files: BenchmarkFiles, settings: Settings
) -> int:
    """The exit code, after measuring, showing the report and writing the files.

    Raises:
        EngineError: something is wrong before the first prompt is measured.
    """
    options.policies.check()
    prompts = read_prompts(options.prompts)
    old = read_results(files.resume) if files.resume else None
    _check_is_free(files)
    target = find_target(files.preset, paths.presets_dir()) if files.preset else None
    configuration = open_here(request, settings, "a benchmark of drafts").configuration
    benchmark = Benchmark(options, prompts, configuration, files.json or files.resume)
    exit_code = benchmark.run(old)
    if benchmark.results is None or not benchmark.results.prompts:
        _note("no prompt was measured completely")
        return exit_code or EXIT_FAILED
    show(benchmark.results, files.html)
    if is_usual(request) and noise_warning(_summaries(benchmark.results)) is None:
        keep_speed(configuration, benchmark.results, request.preset or "")
    if target is not None and files.preset is not None and exit_code == 0:
        write_recommendation(target, benchmark.results, configuration, files.preset)
    return exit_code


def is_usual(request: ModelRequest) -> bool:
    """Whether nothing was typed that changes the speed of the model or of its preset."""
    files = replace(request, model=None, draft=None, preset=None, mmproj=None, n_ctx=None)
    return files in (ModelRequest(), ModelRequest(backend="llama.cpp"))


def keep_speed(configuration: Configuration, results: Results, preset: str) -> None:
    """Keep how fast the model wrote without drafts, the median run, for plans and lists.

    `preset` is the name of the one it was measured with, empty for the usual settings.
    """
    plain = [run for record in results.prompts for run in record.runs if run.is_plain]
    if not plain:
        return
    today = datetime.now().astimezone().date().isoformat()
    tps = median(run.decode_tps for run in plain)
    Speeds(paths.speeds_path()).keep(
        model_identity(configuration.model_path),
        ModelSpeed(tps, None, None, None, preset, today, by="bench", n_replies=len(plain)),
    )


def show(results: Results, html_path: Path | None) -> None:
    """Print the report, and write it as HTML where a path is given."""
    parts = tuple(report(results))
    screen = console()
    for part in parts:
        screen.print(part)
    if html_path is not None:
        write_text(html_path, html_page(parts))


class Benchmark:
    """One measurement; `results` has what there is, however it ended."""

    def __init__(
        self,
        options: BenchOptions,
        prompts: tuple[list[BenchPrompt], ...],
        configuration: Configuration,
        json_path: Path | None,
    ) -> None:
        self._options = options
        self._prompts = prompts
        self._configuration = configuration
        self._json_path = json_path
        self.results: Results | None = None

    def run(self, old: Results | None) -> int:
        """The exit code, after measuring what an older file lacks."""
        try:
            with loaded_engine(self._configuration, _note) as engine:
                self._measure(engine, old)
        except KeyboardInterrupt:
            _note("stopped; the results so far follow")
            return EXIT_INTERRUPTED
        except EngineError as error:
            if self.results is None or not self.results.prompts:
                raise
            _note(str(error), style="red")
            return EXIT_FAILED
        return 0

    def _measure(self, engine: BlockingClient, old: Results | None) -> None:
        policies = self._options.policies.of_model(engine.last_loaded.predictors)
        plan = make_plan(self._options, self._configuration, engine.last_loaded, policies)
        subject = make_subject(self._configuration, engine.last_loaded, plan)
        if old is not None:
            check_same_subject(old.subject, subject)
        results = new_results(subject) if old is None else without_failures(old)
        self._keep(results)
        units = still_to_do(make_units(self._prompts, self._options.temperatures), results)
        total = len(units) * n_runs(len(policies), plan.n_pairs)
        screen = console(stderr=True)
        screen.print(_introduction(subject, len(units), total), soft_wrap=True)
        with ConsoleProgress(screen, total) as progress:
            run_units(engine, units, plan, results, progress=progress, keep=self._keep)

    def _keep(self, results: Results) -> None:
        self.results = results
        if self._json_path is not None:
            write_results(self._json_path, results)


def _check_is_free(files: BenchmarkFiles) -> None:
    """Make sure that no earlier results are lost.

    Raises:
        BenchError: the JSON file is there, and is not the one to resume.
    """
    if files.json is None or files.json == files.resume or not files.json.exists():
        return
    raise BenchError(
        f"{files.json} exists already: continue it with --resume {files.json}, or use another "
        "file for --json"
    )


def _introduction(subject: BenchSubject, n_prompts: int, n_replies: int) -> str:
    draft = f" with {subject.draft}" if subject.draft else ""
    return (
        f"{subject.model}{draft}: {counted(n_prompts, 'prompt')}, "
        f"{counted(len(subject.policies), 'policy')} and plain decoding, "
        f"{counted(n_replies, 'reply')} of up to {counted(subject.n_tokens, 'token')}"
    )


def new_results(subject: BenchSubject) -> Results:
    """Results with no prompts yet."""
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    return Results(this_machine(), subject, started)


def make_plan(
    options: BenchOptions,
    configuration: Configuration,
    loaded: Loaded,
    policies: tuple[Policy, ...],
) -> RunPlan:
    """What is run for every prompt."""
    return RunPlan(
        policies=policies,
        n_pairs=options.n_pairs,
        n_tokens=options.n_tokens,
        seed=options.prompts.seed,
        speculation=configuration.speculation,
        sampling=configuration.sampling,
        has_draft=PredictorName.DRAFT in loaded.predictors,
        has_template=loaded.has_chat_template,
    )


def make_subject(configuration: Configuration, loaded: Loaded, plan: RunPlan) -> BenchSubject:
    """What the results are of."""
    draft = configuration.draft
    return BenchSubject(
        model=configuration.model_path.name,
        model_bytes=configuration.model_path.stat().st_size,
        file_type=loaded.file_type,
        n_vocab=loaded.n_vocab or 0,
        n_ctx=loaded.n_ctx or configuration.n_ctx,
        n_threads=configuration.n_threads,
        draft=None if draft is None else draft.model_path.name,
        draft_bytes=None if draft is None else draft.model_path.stat().st_size,
        policies=tuple(policy.name for policy in plan.policies),
        n_pairs=plan.n_pairs,
        n_tokens=plan.n_tokens,
        seed=plan.seed,
        verification=plan.speculation.verification,
    )


def make_units(
    sets: Sequence[Sequence[BenchPrompt]], temperatures: Sequence[float]
) -> tuple[Unit, ...]:
    """Every prompt at every temperature, set after set, as a chat stays with its subject."""
    return tuple(
        Unit(prompt, temperature, index)
        for temperature in dict.fromkeys(temperatures)
        for prompts in sets
        for index, prompt in enumerate(prompts)
    )


def still_to_do(units: Sequence[Unit], results: Results) -> tuple[Unit, ...]:
    """The prompts without a record."""
    done = {record.key for record in results.prompts}
    return tuple(unit for unit in units if unit.key not in done)


def without_failures(results: Results) -> Results:
    """The results whose prompts have runs, so that the others are tried again."""
    kept = tuple(record for record in results.prompts if record.failure is None)
    return replace(results, prompts=kept)


def run_units(
    engine: BlockingClient,
    units: Sequence[Unit],
    plan: RunPlan,
    results: Results,
    *,
    progress: BenchmarkProgress,
    keep: Callable[[Results], None],
) -> Results:
    """The results with the records of these prompts.

    Args:
        engine: The engine, which has a model.
        units: The prompts to run.
        plan: What is run for each.
        results: What there is already.
        progress: Shows every run.
        keep: Called with the results after every prompt.

    Raises:
        WorkerError: the engine cannot be started again, or died on `MOST_CRASHES` prompts in a
            row; what was measured has been kept.
    """
    n_crashes = 0
    runs_each = n_runs(len(plan.policies), plan.n_pairs)
    for number, unit in enumerate(units, 1):
        start_s = time.perf_counter()
        record, is_crash = _record(engine, unit, plan, progress)
        results = replace(
            results,
            prompts=(*results.prompts, record),
            elapsed_s=results.elapsed_s + time.perf_counter() - start_s,
        )
        keep(results)
        progress.prompt_done(record, number * runs_each)
        n_crashes = n_crashes + 1 if is_crash else 0
        if n_crashes >= MOST_CRASHES:
            raise WorkerError(
                f"the engine died on {n_crashes} prompts in a row ({record.failure}): earlier "
                "measurements are saved; try fewer policies, or see `kvchat doctor`"
            )
    return results


def _record(
    engine: BlockingClient, unit: Unit, plan: RunPlan, progress: BenchmarkProgress
) -> tuple[PromptRecord, bool]:
    """The record of a prompt, and whether the engine died over it."""
    try:
        record = measure_prompt(
            engine,
            unit.prompt,
            plan,
            temperature=unit.temperature,
            index=unit.index,
            run_done=lambda policy: progress.run_done(unit.prompt, policy),
        )
    except EngineStoppedError as error:
        return PromptRecord(*unit.key, failure=f"{error.title}: {error}"), True
    return record, False


def write_recommendation(
    target: Path, results: Results, configuration: Configuration, preset: str
) -> None:
    """Write what the benchmark recommends into a preset, unless it cannot be told.

    Raises:
        PresetError: the file is not a valid preset, or cannot be written.
    """
    advice = recommend(_summaries(results), results.subject.policies)
    if advice.is_open:
        _note(f"{target} was not changed: {advice.reason}")
        return
    draft = configuration.draft
    write_policy(
        target,
        advice.policy,
        model=configuration.model_path,
        draft=None if draft is None else draft.model_path,
        name=target.stem if Path(preset).suffix == ".toml" else preset,
    )
    console().print(Text(f"Written to {target}"), soft_wrap=True)


def _summaries(results: Results) -> tuple[SetSummary, ...]:
    return summarise(results.prompts, results.subject.policies)


def _note(text: str, *, style: str = "") -> None:
    console(stderr=True).print(Text(f"kvchat: {text}", style), soft_wrap=True)
