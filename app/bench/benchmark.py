"""One benchmark from the options to the report and the preset; what the command does."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.text import Text

from app import paths
from app.bench.asking import Asker
from app.bench.errors import BenchError
from app.bench.job import make_units, run_units, still_to_do, without_failures
from app.bench.machine import this_machine
from app.bench.opening import (
    Asked,
    check_policies,
    chosen_policies,
    make_plan,
    make_subject,
    read_prompts,
)
from app.bench.preset_writing import find_target, write_policy
from app.bench.progress import ConsoleProgress
from app.bench.prompt_sets import Prompt
from app.bench.records import Results, Subject
from app.bench.report_html import html_report
from app.bench.results_file import check_same_subject, read_results, write_results, write_text
from app.bench.schedule import n_runs
from app.bench.summary import summarise
from app.bench.table import report
from app.bench.verdict import noise_warning, recommend
from app.config import Settings
from app.format import counted
from app.opening import ModelRequest, open_model
from app.render.console import console
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.process.client import WorkerClient
from engine.process.protocol import EngineClient

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Files:
    """Where results come from and go to; None is nowhere."""

    json: Path | None
    html: Path | None
    resume: Path | None
    """Results of an earlier run, which also are written on if `json` names no other file."""
    preset: str | None
    """Name or path of the preset that is set as recommended."""


def run_benchmark(asked: Asked, request: ModelRequest, files: Files, settings: Settings) -> int:
    """Measure, show the report and write the files; gives the exit code.

    Raises:
        EngineError: something is wrong before the first prompt is measured.
    """
    check_policies(asked)
    prompts = read_prompts(asked)
    old = read_results(files.resume) if files.resume else None
    _check_is_free(files)
    target = find_target(files.preset, paths.presets_dir()) if files.preset else None
    configuration = open_model(request, settings).configuration
    benchmark = Benchmark(asked, prompts, configuration, files.json or files.resume)
    exit_code = benchmark.run(old)
    if benchmark.results is None or not benchmark.results.prompts:
        _tell("no prompt was measured to its end")
        return exit_code or EXIT_FAILED
    show(benchmark.results, files.html)
    if target is not None and files.preset is not None and exit_code == 0:
        write_recommendation(target, benchmark.results, configuration, files.preset)
    return exit_code


def show(results: Results, html_path: Path | None) -> None:
    """Print the report, and write it as HTML where a path is given."""
    screen = console()
    for part in report(results):
        screen.print(part)
    if html_path is not None:
        write_text(html_path, html_report(results))


class Benchmark:
    """One measurement; `results` has what there is, however it ended."""

    def __init__(
        self,
        asked: Asked,
        prompts: tuple[list[Prompt], ...],
        configuration: Configuration,
        json_path: Path | None,
    ) -> None:
        self._asked = asked
        self._prompts = prompts
        self._configuration = configuration
        self._json_path = json_path
        self.results: Results | None = None

    def run(self, old: Results | None) -> int:
        """Measure, after what an older file has; gives the exit code."""
        client = WorkerClient(
            log_path=paths.worker_log_path(),
            memory_path=paths.build_memory_path(),
            costs_path=paths.costs_path(),
        )
        try:
            self._measure(client, old)
        except KeyboardInterrupt:
            _tell("stopped; this is what was measured")
            return EXIT_INTERRUPTED
        except EngineError as error:
            if self.results is None or not self.results.prompts:
                raise
            _tell(str(error), style="red")
            return EXIT_FAILED
        finally:
            client.close()
        return 0

    def _measure(self, client: EngineClient, old: Results | None) -> None:
        asker = Asker(client, self._configuration)
        policies = chosen_policies(self._asked, asker.loaded.predictors)
        plan = make_plan(self._asked, self._configuration, asker.loaded, policies)
        subject = make_subject(self._configuration, asker.loaded, plan)
        if old is not None:
            check_same_subject(old.subject, subject)
        results = _new_results(subject) if old is None else without_failures(old)
        self._keep(results)
        units = still_to_do(make_units(self._prompts, self._asked.temperatures), results)
        total = len(units) * n_runs(len(policies), plan.n_pairs)
        screen = console(stderr=True)
        for note in (*asker.loaded.notes, _introduction(subject, len(units), total)):
            screen.print(note, soft_wrap=True)
        with ConsoleProgress(screen, total) as progress:
            run_units(asker, units, plan, results, progress=progress, keep=self._keep)

    def _keep(self, results: Results) -> None:
        self.results = results
        if self._json_path is not None:
            write_results(self._json_path, results)


def _check_is_free(files: Files) -> None:
    """Make sure that no earlier results are lost.

    Raises:
        BenchError: the JSON file is there, and not the one that is gone on with.
    """
    if files.json is None or files.json == files.resume or not files.json.exists():
        return
    raise BenchError(
        f"{files.json} is there already: go on with it by --resume {files.json}, or name another "
        "file for --json"
    )


def _introduction(subject: Subject, n_prompts: int, n_replies: int) -> str:
    draft = f" with {subject.draft}" if subject.draft else ""
    return (
        f"{subject.model}{draft}: {counted(n_prompts, 'prompt')}, "
        f"{counted(len(subject.policies), 'policy')} and plain decoding, "
        f"{counted(n_replies, 'reply')} of up to {counted(subject.n_tokens, 'token')}"
    )


def _new_results(subject: Subject) -> Results:
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    return Results(this_machine(), subject, started)


def write_recommendation(
    target: Path, results: Results, configuration: Configuration, asked: str
) -> None:
    """Write what the benchmark recommends into a preset, unless it cannot be told.

    Raises:
        PresetError: the file is not a valid preset, or cannot be written.
    """
    policies = results.subject.policies
    summaries = summarise(results.prompts, policies)
    if noise_warning(summaries) is not None:
        _tell(f"{target} is left as it is, for the numbers are too noisy")
        return
    advice = recommend(summaries, policies)
    if advice.is_open:
        _tell(f"{target} is left as it is: {advice.reason}")
        return
    draft = configuration.draft
    write_policy(
        target,
        advice.policy,
        model=configuration.model_path,
        draft=None if draft is None else draft.model_path,
        name=target.stem if Path(asked).suffix == ".toml" else asked,
    )
    console().print(Text(f"Written to {target}"), soft_wrap=True)


def _tell(text: str, *, style: str = "") -> None:
    console(stderr=True).print(Text(f"kvchat: {text}", style), soft_wrap=True)
