"""`kvchat cache-quality`: the quality that each type of KV cache costs with a model, on texts."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product, starmap
from pathlib import Path

import click
from rich.text import Text

from app.cli.options import (
    FILE,
    Count,
    backend_choice,
    gathered,
    joined,
    opens_model,
    preset_option,
    threads_option,
)
from app.cli.printing import print_lines
from app.config import Settings, load_settings
from app.console import EXIT_FAILED, EXIT_INTERRUPTED, Progress, note, print_line, style_words
from app.format import counted
from app.opening import ModelRequest, open_here
from app.planning import save_verdict
from app.quality import MeasurementRun, Options, unfinished_path
from app.render.lines import Line
from app.render.quality import report_lines
from app.tables import PAGE_WIDTH, PLAIN_WIDTH, check_page, write_page
from engine.configuration import BackendName, Configuration, KVTypeName, KVTypes
from engine.errors import EngineError, PresetError
from engine.policy.choice import checked, has_verdict
from engine.quality.laboratory import LaboratoryProgress, Note
from engine.quality.records import Report, read_report

KIND_NAME = re.compile(r"[a-z0-9_]{1,32}")
ALL_TYPES: tuple[KVTypeName, ...] = (
    "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
)  # fmt: skip
USUAL_TYPES = "q8_0,q8_0/q5_1,q5_1,q8_0/q4_0,q4_0"
TORCH_TYPES = "q8_0,fp8,q4_1,q4_0,nf4,q3,kivi4,decoupled,q8_0/q4_0,bf16,paged,tiered,means"
MAX_TOKENS = 32 * 1024
"""Types and tokens that are measured by default."""


quality_options = joined(
    preset_option,
    click.option("--text", "text_paths", multiple=True, type=FILE,
                 help="UTF-8 text file to measure on; repeatable. [texts shipped with kvchat]"),
    click.option("--chats", "takes_chats", is_flag=True,
                 help="Measure on your chats too. The report contains figures but no text; "
                 "nothing leaves this machine."),
    backend_choice,
    click.option("--kinds", "names",
                 help="K/V types, separated by commas; q8_0/q5_1 means q8_0 keys and q5_1 values. "
                 f"[{USUAL_TYPES}; with torch: all types]"),
    click.option("--all", "takes_all", is_flag=True,
                 help="Measure every combination of K and V types (takes hours)."),
    click.option("--reference", type=click.Choice(["f16", "bf16", "f32"]), default="f16",
                 show_default=True, help="K/V type that the others are compared with."),
    click.option("--ctx", "n_ctx", type=Count(), help="Context length of the measurement. [8k]"),
    threads_option,
    click.option("--chunk", "n_chunk", type=Count(1, 8192), help="Tokens per batch. [64]"),
    click.option("--tokens", "n_tokens", default=MAX_TOKENS, show_default=True, type=Count(0),
                 help="Maximum tokens of all texts together; 0: no limit."),
    click.option("--no-questions", "asks", flag_value=False, default=True, type=bool,
                 help="Skip the questions that test retrieval from the context."),
    click.option("--no-speeds", "takes_times", flag_value=False, default=True, type=bool,
                 help="Do not measure memory and speed; a later run with --json FILE can do it."),
    click.option("--json", "json_path", type=FILE,
                 help="Write the report to this JSON file; if the file exists, continue its "
                 "measurement."),
    click.option("--html", "html_path", type=FILE, help="Write the report to this HTML file."),
    click.option("--show", "show_path", type=FILE, help="Print the report of an earlier run."),
    gathered("options", "app.cli.cache_quality:Options"),
    opens_model,
)  # fmt: skip


@click.command(name="cache-quality")
@click.argument("model", required=False)
@quality_options
def command(
    asked: ModelRequest,
    options: Options,
    *,
    names: str | None,
    takes_all: bool,
    json_path: Path | None,
    html_path: Path | None,
    show_path: Path | None,
) -> int:
    """Measure how K/V types affect MODEL: loss, KL divergence, memory, speed.

    kvchat decodes texts with each K/V type and compares the logits with an unquantised reference.
    The control row repeats the reference and shows the noise.

    \b
    kvchat cache-quality                           default model and types
    kvchat cache-quality qwen2.5-7b --text a.md    on your text
    kvchat cache-quality --chats --json mine.json  on your chats; save the report
    kvchat cache-quality --all --json all.json     every K/V pair; takes hours
    kvchat cache-quality --backend torch --kinds nf4,kivi4

    MODEL defaults to the default model in the settings, else to the model used last. Ctrl+C stops
    and prints the results so far; the same command resumes the run, also after a crash.
    """  # noqa: D301  click wants the backspace character itself
    settings = load_settings().settings
    check_page(html_path)
    if show_path is not None:
        if json_path is not None:
            raise click.UsageError("--show only prints a report: leave out --json")
        _print_report(read_report(show_path), settings, html_path)
        return 0
    options = _with_types(options, names, asked.backend, takes_all=takes_all)
    configuration = open_here(asked, settings, "the measurement").configuration
    request = options.request(configuration)
    if options.takes_chats:
        n_chats = sum(text.kind == "chat" for text in request.texts)
        note(
            f"{counted(n_chats, 'chat')} read on this machine; the report contains figures and "
            "token counts, no text"
        )
    path = json_path or unfinished_path(request, takes_chats=options.takes_chats)
    with Progress() as progress, MeasurementRun(path, progress.note) as measurement:
        measurement.begin(request, replaces=json_path is None)
        exit_code = _follow(measurement, progress)
    report = measurement.report
    if report is None or not report.measurements:
        return exit_code or EXIT_FAILED
    _print_report(report, settings, None)
    _print_verdict(report, configuration, settings)
    if html_path is not None:
        _write_page(html_path, report, settings)
    if json_path is None and measurement.is_complete:
        path.unlink(missing_ok=True)  # after all that may fail: nothing is measured again
    return exit_code


def _with_types(
    options: Options, names: str | None, backend: BackendName | None, *, takes_all: bool
) -> Options:
    if takes_all and backend == "torch":
        raise click.UsageError("--all works only with llama.cpp: with torch, leave out --all")
    pairs = read_types(names or (TORCH_TYPES if backend == "torch" else USUAL_TYPES), backend)
    if takes_all:
        pairs = tuple(starmap(KVTypes, product(ALL_TYPES, ALL_TYPES)))
    kinds = tuple(pair for pair in pairs if pair != KVTypes.parse(options.reference))
    return replace(options, kinds=kinds, n_tokens=options.n_tokens or None)


def read_types(text: str, backend: BackendName | None = None) -> tuple[KVTypes, ...]:
    """K/V types, written as `q8_0,q8_0/q5_1`; the torch backend checks the names of its types."""
    names = filter(None, (part.strip().lower() for part in text.split(",")))
    pairs = dict.fromkeys(_read_pair(name, backend) for name in names)
    if not pairs:
        raise click.BadParameter("the list of K/V types is empty: write one such as q8_0")
    return tuple(pairs)


def _read_pair(name: str, backend: BackendName | None) -> KVTypes:
    if backend != "torch":
        try:
            return KVTypes.parse(name)
        except PresetError as error:
            raise click.BadParameter(str(error)) from error
    k, _, v = name.partition("/")
    for each in (k, v or k):
        if not KIND_NAME.fullmatch(each):
            raise click.BadParameter(f"{each!r} is not a cache type: write one such as q8_0")
    return KVTypes(k, v or k)


def _follow(measurement: MeasurementRun, progress: Progress) -> int:
    """The exit code, after the last event; a second Ctrl+C does not wait for it."""
    was_stopped = False
    try:
        try:
            _show_events(measurement, progress)
        except KeyboardInterrupt:
            was_stopped = True
            progress.note("the measurement stops; the results so far follow")
            measurement.stop()
            with suppress(KeyboardInterrupt):
                _show_events(measurement, progress)
    except EngineError as error:
        if measurement.report is None or not measurement.report.measurements:
            raise
        progress.note(f"{error.title}: {error}")
        return EXIT_FAILED
    if measurement.is_complete and measurement.is_written and not was_stopped:
        return 0
    is_stopped = was_stopped or (measurement.is_complete is False and measurement.is_written)
    return EXIT_INTERRUPTED if is_stopped else EXIT_FAILED


def _show_events(measurement: MeasurementRun, progress: Progress) -> None:
    for event in measurement:
        if isinstance(event, LaboratoryProgress):
            share = event.n_done / event.n_total if event.n_total else None
            progress.show(event.what, share)
        elif isinstance(event, Note):
            progress.note(event.text)


def _print_verdict(report: Report, configuration: Configuration, settings: Settings) -> None:
    """Save the measurement as a plan, and print its recommended types and how to use them."""
    if configuration.backend == "torch":
        return  # a plan chooses llama.cpp's types
    try:
        verdict = save_verdict(report, configuration, settings.cache_policy)
    except EngineError as error:
        note(f"{error.title}: {error}")
        return
    if verdict is not None:
        pair, why = verdict
        print_line()
        print_line(why)
        model = shlex.quote(str(configuration.model_path))
        print_line(f"To chat with {pair}: kvchat {model} --kv auto")


def _print_report(report: Report, settings: Settings, html_path: Path | None) -> None:
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else PLAIN_WIDTH
    print_lines(_lines(report, settings, width))
    if html_path is not None:
        _write_page(html_path, report, settings)


def _lines(report: Report, settings: Settings, width: int) -> Iterator[Line]:
    candidates = checked(report, settings.cache_policy) if has_verdict(report) else ()
    yield from report_lines(report, candidates, width)


def _write_page(path: Path, report: Report, settings: Settings) -> None:
    texts = (
        Text.assemble(*((run.text, " ".join(style_words(run.style))) for run in line))
        for line in _lines(report, settings, PAGE_WIDTH)
    )
    write_page(path, texts)
