"""`kvchat cache-quality`: what a type of KV cache costs with a model, measured on texts."""

import re
from dataclasses import replace
from itertools import product, starmap
from pathlib import Path
from typing import TYPE_CHECKING

import click

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
from app.quality import MOST_TOKENS, USUAL_KINDS
from engine.configuration import BackendName, KVTypeName, KVTypes
from engine.errors import PresetError

if TYPE_CHECKING:
    from app.config import Settings
    from app.opening import ModelRequest
    from app.quality.measure import Options, ReportFiles

KIND_NAME = re.compile(r"[a-z0-9_]{1,32}")
ALL_TYPES: tuple[KVTypeName, ...] = (
    "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
)  # fmt: skip
TORCH_KINDS = "q8_0,fp8,q4_1,q4_0,nf4,q3,kivi4,decoupled,q8_0/q4_0,bf16,paged,tiered,means"
"""What is measured of the torch backend where nothing else is said: a row for each kind."""


def read_kinds(value: str, backend: BackendName | None = None) -> tuple[KVTypes, ...]:
    """Pairs of K and V types, written as `q8_0,q8_0/q5_1`; torch says itself which it knows.

    Raises:
        click.BadParameter: a name is none.
    """
    names = filter(None, (part.strip().lower() for part in value.split(",")))
    kinds = dict.fromkeys(_kind(name, backend) for name in names)
    if not kinds:
        raise click.BadParameter("the list of K/V types is empty")
    return tuple(kinds)


def _kind(name: str, backend: BackendName | None) -> KVTypes:
    if backend != "torch":
        try:
            return KVTypes.parse(name)
        except PresetError as error:
            raise click.BadParameter(str(error)) from error
    k, _, v = name.partition("/")
    for each in (k, v or k):
        if not KIND_NAME.fullmatch(each):
            raise click.BadParameter(f"{each!r} is not a cache type")
    return KVTypes(k, v or k)


quality_options = joined(
    preset_option,
    click.option("--text", "text_paths", multiple=True, type=FILE,
                 help="UTF-8 text file to measure on; repeatable. [texts shipped with kvchat]"),
    click.option("--chats", "takes_chats", is_flag=True,
                 help="Measure on your chats too. The report contains figures but no text; "
                 "nothing leaves this machine."),
    backend_choice,
    click.option("--kinds", "named",
                 help="K/V types, separated by commas; q8_0/q5_1 means q8_0 keys and q5_1 values. "
                 f"[{USUAL_KINDS}; with torch: all types]"),
    click.option("--all", "takes_all", is_flag=True,
                 help="Measure every combination of K and V types (takes hours)."),
    click.option("--reference", type=click.Choice(["f16", "bf16", "f32"]), default="f16",
                 show_default=True, help="K/V type of the reference."),
    click.option("--ctx", "n_ctx", type=Count(), help="Context length of the measurement. [8k]"),
    threads_option,
    click.option("--chunk", "n_chunk", type=Count(1, 8192), help="Tokens per batch. [64]"),
    click.option("--tokens", "n_tokens", default=MOST_TOKENS, show_default=True, type=Count(0),
                 help="Maximum tokens of all texts together; 0: no limit."),
    click.option("--no-questions", "asks", flag_value=False, default=True, type=bool,
                 help="Skip the retrieval questions."),
    click.option("--no-speeds", "takes_times", flag_value=False, default=True, type=bool,
                 help="Do not measure memory and speed; --resume can add them later."),
    click.option("--json", type=FILE, help="Write the report to this JSON file during the run."),
    click.option("--html", type=FILE, help="Write the report to this HTML file."),
    click.option("--resume", type=FILE, help="Resume an earlier run from its JSON file."),
    click.option("--show", "show_path", type=FILE, help="Print the report of an earlier run."),
    gathered("files", "app.quality.measure:ReportFiles"),
    gathered("options", "app.quality.measure:Options"),
    opens_model,
)  # fmt: skip


@click.command(name="cache-quality")
@click.argument("model", required=False)
@quality_options
def command(
    asked: "ModelRequest",
    options: "Options",
    files: "ReportFiles",
    *,
    named: str | None,
    takes_all: bool,
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
    kvchat cache-quality --all --resume all.json   resume that run
    kvchat cache-quality --backend torch --kinds nf4,kivi4

    MODEL defaults to the default model in the settings, else to the model used last. Ctrl+C stops
    and prints the results so far; the same command resumes the run, also after a crash.
    """  # noqa: D301  click wants the backspace character itself
    from app.config import load_settings
    from app.quality.measure import run_measurement

    settings = load_settings().settings
    if show_path is not None:
        if files.json is not None or files.resume is not None:
            raise click.UsageError("--show only prints a report: leave out --json and --resume")
        _show(show_path, files.html, settings)
        return 0
    if takes_all and asked.backend == "torch":
        raise click.UsageError("--all works only with llama.cpp: with torch, leave out --all")
    options = _completed(options, named, asked.backend, takes_all=takes_all)
    return run_measurement(options, asked, files, settings)


def _show(path: Path, page: Path | None, settings: "Settings") -> None:
    """Show the report of an earlier run, and write it as a page where one is named."""
    from app.quality.measure import show, write_page
    from engine.quality.records import read_report

    report = read_report(path)
    show(report, settings)
    if page is not None:
        write_page(report, settings, page)


def _completed(
    options: "Options", named: str | None, backend: BackendName | None, *, takes_all: bool
) -> "Options":
    """The options with the kinds to measure."""
    usual = TORCH_KINDS if backend == "torch" else USUAL_KINDS
    pairs = read_kinds(usual if named is None else named, backend)
    if takes_all:
        pairs = tuple(starmap(KVTypes, product(ALL_TYPES, ALL_TYPES)))
    kinds = tuple(pair for pair in pairs if pair != KVTypes.parse(options.reference))
    return replace(options, kinds=kinds, n_tokens=options.n_tokens or None)
