"""`kvchat cache-quality`: what a type of KV cache costs with a model, measured on texts."""

import re
from pathlib import Path

import click

from app.cli.options import (
    ADDRESS,
    KV_TYPE,
    Count,
    backend_choice,
    joined,
    preset_option,
    threads_option,
)
from engine.configuration import BackendName, KVTypeName
from engine.planning.values import AskedThreads

FILE = click.Path(dir_okay=False, path_type=Path)
DEFAULT_KINDS = "q8_0,q8_0/q5_1,q5_1,q8_0/q4_0,q4_0"
KIND_NAME = re.compile(r"([1-9][0-9]{0,3}x[a-z0-9_]{1,32}\+)?[a-z0-9_]{1,32}")
ALL_TYPES: tuple[KVTypeName, ...] = (
    "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
)  # fmt: skip
TORCH_KINDS = (
    "q8_0,fp8,q4_1,q4_0,rotated_q4_0,nf4,q3,rotated_q3,kivi4,kivi2,decoupled,q8_0/q4_0,bf16,"
    "static,paged,tiered,sliding,means"
)
"""What is measured of the torch backend where nothing else is said: a row for each kind."""
MOST_TOKENS = 32 * 1024


def read_kinds(value: str, backend: BackendName | None = None) -> tuple[tuple[str, str], ...]:
    """Pairs of K and V types, written as `q8_0,q8_0/q5_1`; torch says itself which it knows.

    Raises:
        click.BadParameter: a name is none.
    """
    pairs = []
    for name in filter(None, (part.strip().lower() for part in value.split(","))):
        type_k, _, type_v = name.partition("/")
        for each in (type_k, type_v or type_k):
            if backend == "torch":
                if not KIND_NAME.fullmatch(each):
                    raise click.BadParameter(f"{each!r} is no name of a cache kind")
            elif each not in KV_TYPE.choices:
                raise click.BadParameter(
                    f"{each!r} is no cache type: there are {', '.join(KV_TYPE.choices)}; write K "
                    "and V as q8_0/q5_1"
                )
        pairs.append((type_k, type_v or type_k))
    if not pairs:
        raise click.BadParameter("it names nothing")
    return tuple(dict.fromkeys(pairs))


quality_options = joined(
    preset_option,
    click.option("--text", "text_paths", multiple=True, type=FILE,
                 help="A text, Markdown or code in UTF-8; may be repeated. [a small set of "
                 "kvchat's own]"),
    click.option("--chats", is_flag=True,
                 help="Your own chats too: with this you agree that kvchat reads them now. Figures "
                 "are kept of them, no words, and nothing leaves this machine."),
    backend_choice,
    click.option("--server", "servers", multiple=True, type=ADDRESS,
                 help="Compare servers in place of types; may be repeated, the first is the "
                 "reference, MODEL its name there."),
    click.option("--kinds",
                 help="Types of K and V, separated by commas; q8_0/q5_1 is K and V apart. "
                 f"[{DEFAULT_KINDS}; every kind that torch has]"),
    click.option("--all", "takes_all", is_flag=True,
                 help="Every type of K with every type of V: overnight."),
    click.option("--reference", type=click.Choice(["f16", "bf16", "f32"]), default="f16",
                 show_default=True, help="What the others are compared with."),
    click.option("--ctx", "n_ctx", type=Count(), help="Longest text without a break. [8k]"),
    threads_option,
    click.option("--chunk", "n_chunk", type=Count(1, 8192), help="Tokens of a batch. [64]"),
    click.option("--tokens", "n_tokens", default=MOST_TOKENS, show_default=True, type=Count(0),
                 help="Most tokens of all texts together; 0 takes all."),
    click.option("--no-questions", is_flag=True, help="Leave out needles and problems."),
    click.option("--no-speeds", is_flag=True,
                 help="Leave out memory and speed; --resume adds them."),
    click.option("--json", "json_path", type=FILE, help="Write the report here while it grows."),
    click.option("--html", "html_path", type=FILE, help="Write a page with charts here."),
    click.option("--resume", "resume_path", type=FILE,
                 help="Go on with the JSON of an earlier run."),
    click.option("--due", "is_due", is_flag=True,
                 help="Of every model, measure the chosen kind again whose figures are older than "
                 "probe_days."),
    click.option("--show", "show_path", type=FILE, help="Only show the JSON of an earlier run."),
)  # fmt: skip


@click.command(name="cache-quality")
@click.argument("model", required=False)
@quality_options
def command(
    model: str | None,
    preset: str | None,
    text_paths: tuple[Path, ...],
    chats: bool,
    backend: BackendName | None,
    servers: tuple[str, ...],
    kinds: str | None,
    takes_all: bool,
    reference: str,
    n_ctx: int | None,
    n_threads: AskedThreads,
    n_chunk: int | None,
    n_tokens: int,
    no_questions: bool,
    no_speeds: bool,
    json_path: Path | None,
    html_path: Path | None,
    resume_path: Path | None,
    is_due: bool,
    show_path: Path | None,
) -> int:
    """Measure what types of KV cache cost with MODEL: likelihood, KL divergence, memory and speed.

    Texts are decoded through the cache, so that every token reads what was quantised, beside a
    reference that is not; the control row is the reference again and shows what is noise.

    \b
    kvchat cache-quality                           the usual model and kinds
    kvchat cache-quality qwen2.5-7b --text a.md    on a text of your own
    kvchat cache-quality --chats --json mine.json  on your chats; keep the report
    kvchat cache-quality --all --json all.json     every pair, overnight
    kvchat cache-quality --all --resume all.json   go on, in mid-text too
    kvchat cache-quality --due                     measure again what is old
    kvchat cache-quality --backend torch --kinds nf4,kivi4
    kvchat cache-quality --server a:8080 --server b:8080

    Without MODEL it takes that of the settings, else the one used last. Ctrl+C ends it with the
    table of what was measured; the same command goes on there, also where it was killed.
    """  # noqa: D301  click wants the backspace character itself
    from app.config import load_settings
    from app.opening import ModelRequest
    from app.quality.measure import (
        Files,
        Options,
        measure_due,
        run_measurement,
        show,
        write_page,
    )
    from engine.quality.records import CacheKind, read_report

    settings = load_settings().settings
    if show_path is not None:
        report = read_report(show_path)
        show(report, settings)
        if html_path is not None:
            write_page(report, html_path)
        return 0
    if takes_all and backend == "torch":
        raise click.UsageError("--all is llama.cpp's; torch measures every kind where none is said")
    if servers:
        _check_servers(preset, backend, kinds, n_threads, n_chunk, others=takes_all or is_due)
    usual = TORCH_KINDS if backend == "torch" else DEFAULT_KINDS
    pairs = read_kinds(usual if kinds is None else kinds, backend)
    if takes_all:
        pairs = tuple((k, v) for k in ALL_TYPES for v in ALL_TYPES)
    chosen = (CacheKind(*pair) for pair in pairs if pair != (reference, reference))
    options = Options(
        kinds=() if servers else tuple(chosen),
        reference=reference,
        text_paths=text_paths,
        takes_chats=chats,
        n_ctx=n_ctx,
        n_chunk=n_chunk,
        n_tokens=n_tokens or None,
        asks=not no_questions,
        takes_times=not no_speeds and not servers,
        servers=servers,
    )
    files = Files(json_path, html_path, resume_path)
    if is_due:
        if model is not None or text_paths or chats or files != Files() or backend is not None:
            raise click.UsageError(
                "--due measures the models and kinds of kept plans on kvchat's own texts: leave "
                "out MODEL, --backend, texts and files"
            )
        return measure_due(options, settings)
    request = ModelRequest(model, None, preset, None, n_threads, backend=backend)
    return run_measurement(options, request, files, settings)


def _check_servers(*named: object, others: bool) -> None:
    """Refuse what a server was started with, or what is of models here."""
    if others or any(each is not None for each in named):
        raise click.UsageError(
            "--server compares servers with the settings that they were started with: leave out "
            "--preset, --backend, --kinds, --all, --threads, --chunk and --due"
        )
