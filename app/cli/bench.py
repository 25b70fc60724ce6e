"""`kvchat bench`: what speculation gains here, measured in pairs, and what to set."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.configuration import MAX_DRAFT, ControllerName

if TYPE_CHECKING:
    from rich.console import Console

    from app.bench.opening import Asked
    from app.bench.prompt_sets import Prompt
    from app.bench.records import Results, Subject
    from engine.configuration import Configuration
    from engine.worker_client import WorkerClient

EXIT_INTERRUPTED = 130
LENGTHS = "2,4,8"
CONTROLLERS = [name.value for name in ControllerName]
FILE = click.Path(dir_okay=False, path_type=Path)


def listed(allowed: list[str] | None) -> Callable[..., tuple[str, ...]]:
    """Give a reader of names with commas between them; None allows all."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:  # noqa: ARG001  click's signature
        names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
        unknown = [name for name in names if allowed is not None and name not in allowed]
        if unknown and allowed:
            raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(allowed)}")
        return names

    return check


@click.command(name="bench")
@click.argument("model", required=False)
@click.option("--draft", metavar="MODEL", help="A small model of the same vocabulary that drafts.")
@click.option("--preset", metavar="NAME", help="A preset by name, or the path of its file.")
@click.option("--ctx", "n_ctx", type=click.IntRange(1), help="Tokens of context.")
@click.option("--threads", "n_threads", type=click.IntRange(1), help="Threads while decoding.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME|FILE",
    help="grounded, chat, humaneval or a JSONL file; may be given again. [grounded and chat]",
)
@click.option("--prompts", default=4, show_default=True, help="Prompts of a set; 0 is all.")
@click.option(
    "--only",
    multiple=True,
    metavar="PROMPT",
    help="This prompt by its name, instead of drawn ones; may be given again.",
)
@click.option("--pairs", default=2, show_default=True, type=click.IntRange(1), help="Runs of each.")
@click.option(
    "--tokens", default=128, show_default=True, type=click.IntRange(2), help="Of a reply."
)
@click.option(
    "--temperature",
    "temperatures",
    multiple=True,
    type=click.FloatRange(0.0, 10.0),
    help="0 is greedy; may be given again. [0]",
)
@click.option("--seed", default=1, show_default=True, help="Draws the prompts, and the tokens.")
@click.option(
    "--predictors",
    callback=listed(None),
    help="With commas between: lookup, suffix, combined, draft, custom:NAME. [all that the model "
    "can use, without custom ones]",
)
@click.option(
    "--controllers",
    default="auto,fixed",
    show_default=True,
    callback=listed(CONTROLLERS),
    help=f"With commas between: {', '.join(CONTROLLERS)}.",
)
@click.option(
    "--lengths",
    default=LENGTHS,
    show_default=True,
    callback=listed([str(n) for n in range(1, MAX_DRAFT + 1)]),
    help="Draft lengths of the fixed rule, with commas between.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Exactly this, as lookup:fixed:3 or combined:auto, instead of the three lists; may be "
    "given again.",
)
@click.option("--json", "json_path", type=FILE, help="Write every run here, after each prompt.")
@click.option("--html", "html_path", type=FILE, help="Write a report with charts here.")
@click.option("--resume", "resume_path", type=FILE, help="Go on with the JSON of an earlier run.")
@click.option("--write", "preset_name", metavar="PRESET", help="Set this preset as recommended.")
def command(
    model: str | None,
    draft: str | None,
    preset: str | None,
    n_ctx: int | None,
    n_threads: int | None,
    json_path: Path | None,
    html_path: Path | None,
    resume_path: Path | None,
    preset_name: str | None,
    **options: Any,
) -> int:
    """Measure what speculation gains with MODEL, against plain decoding, run beside run.

    \b
    kvchat bench                                    a few minutes with the usual model
    kvchat bench qwen2.5-7b --draft qwen2.5-0.5b    a pair of models
    kvchat bench --set mine.jsonl --prompts 0       all prompts of a file of your own
    kvchat bench --json all.json --html all.html    keep every run, and a report with charts
    kvchat bench --json all.json --resume all.json  go on where it was stopped

    Ctrl+C ends it with the table of what was measured.
    """  # noqa: D301  click wants the backspace character itself
    from app import locations
    from app.bench.opening import check_policies, open_configuration, read_prompts
    from app.bench.preset_writing import find_target
    from app.bench.results_file import read_results

    asked = _asked(options)
    check_policies(asked)
    prompts = read_prompts(asked)
    old = read_results(resume_path) if resume_path else None
    target = find_target(preset_name, locations.presets_dir()) if preset_name else None
    configuration = open_configuration(
        model, draft=draft, preset=preset, n_ctx=n_ctx, n_threads=n_threads
    )
    bench = Bench(asked, prompts, configuration, json_path or resume_path)
    exit_code = bench.run(old)
    if bench.results is None or not bench.results.prompts:
        click.echo("kvchat: no prompt was measured to its end", err=True)
        return exit_code or 1
    _show(bench.results, html_path)
    if target is not None and preset_name is not None and exit_code == 0:
        _write(target, bench.results, configuration, preset_name)
    return exit_code


class Bench:
    """One measurement; `results` has what there is, however it ended."""

    def __init__(
        self,
        asked: "Asked",
        prompts: "tuple[list[Prompt], ...]",
        configuration: "Configuration",
        json_path: Path | None,
    ) -> None:
        self._asked = asked
        self._prompts = prompts
        self._configuration = configuration
        self._json_path = json_path
        self.results: Results | None = None

    def run(self, old: "Results | None") -> int:
        """Measure, after what an older file has; gives the exit code."""
        from app import locations
        from engine.errors import WorkerError
        from engine.worker_client import WorkerClient

        client = WorkerClient(
            log_path=locations.worker_log_path(), memory_path=locations.build_memory_path()
        )
        try:
            self._measure(client, old)
        except KeyboardInterrupt:
            click.echo("\nkvchat: stopped; this is what was measured", err=True)
            return EXIT_INTERRUPTED
        except WorkerError as error:
            if self.results is None or not self.results.prompts:
                raise
            click.secho(f"kvchat: {error}", fg="red", err=True)
            return 1
        finally:
            client.close()
        return 0

    def _measure(self, client: "WorkerClient", old: "Results | None") -> None:
        from rich.console import Console

        from app.bench.asking import Asker
        from app.bench.job import make_units, run_units, still_to_do, without_failures
        from app.bench.opening import chosen_policies, make_plan, make_subject
        from app.bench.progress import ConsoleProgress
        from app.bench.results_file import check_same_subject
        from app.bench.schedule import n_runs

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
        console = Console(stderr=True, highlight=False)
        _introduce(console, subject, len(units), total, asker.loaded.notes)
        with ConsoleProgress(console, total) as progress:
            run_units(asker, units, plan, results, progress=progress, keep=self._keep)

    def _keep(self, results: "Results") -> None:
        from app.bench.results_file import write_results

        self.results = results
        if self._json_path is not None:
            write_results(self._json_path, results)


def _introduce(
    console: "Console", subject: "Subject", n_prompts: int, n_runs: int, notes: tuple[str, ...]
) -> None:
    for note in notes:
        console.print(f"kvchat: {note}", markup=False)
    draft = f" with {subject.draft}" if subject.draft else ""
    console.print(
        f"{subject.model}{draft}: {n_prompts} prompts, {len(subject.policies)} policies and plain "
        f"decoding, {n_runs} replies of up to {subject.n_tokens} tokens",
        markup=False,
        soft_wrap=True,
    )


def _asked(options: dict[str, Any]) -> "Asked":
    from app.bench.opening import DEFAULT_SETS, Asked

    return Asked(
        sets=options["sets"] or DEFAULT_SETS,
        n_prompts=options["prompts"] or None,
        only=options["only"],
        n_pairs=options["pairs"],
        n_tokens=options["tokens"],
        temperatures=options["temperatures"] or (0.0,),
        seed=options["seed"],
        predictors=options["predictors"],
        controllers=tuple(map(ControllerName, options["controllers"])),
        lengths=tuple(map(int, options["lengths"])),
        policies=options["policies"],
    )


def _new_results(subject: "Subject") -> "Results":
    from datetime import datetime

    from app.bench.machine import this_machine
    from app.bench.records import Results

    started = datetime.now().astimezone().isoformat(timespec="seconds")
    return Results(this_machine(), subject, started)


def _show(results: "Results", html_path: Path | None) -> None:
    from rich.console import Console

    from app.bench.table import report

    # A table that goes into a pipe is never cut to the width of a screen.
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    for part in report(results):
        console.print(part)
    if html_path is not None:
        from app.bench.report_html import html_report
        from app.bench.results_file import write_text

        write_text(html_path, html_report(results))


def _write(
    target: Path, results: "Results", configuration: "Configuration", preset_name: str
) -> None:
    from app.bench.preset_writing import write_policy
    from app.bench.summary import summarise
    from app.bench.verdict import noise_warning, recommend

    policies = results.subject.policies
    summaries = summarise(results.prompts, policies)
    if noise_warning(summaries) is not None:
        click.echo(f"kvchat: {target} is left as it is, for the numbers are too noisy", err=True)
        return
    advice = recommend(summaries, policies)
    draft = configuration.draft
    write_policy(
        target,
        advice.policy,
        model=configuration.model_path,
        draft=None if draft is None else draft.model_path,
        name=target.stem if Path(preset_name).suffix == ".toml" else preset_name,
    )
    click.echo(f"Written to {target}")
