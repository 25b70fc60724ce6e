"""`kvchat run`: one reply on standard output, streamed as text or summed up as JSON."""

import queue
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from app.cli import completion
from app.cli.console import SlowReading, note, print_json, print_text, prompt_text, say
from app.cli.options import (
    KV_TYPE,
    SEED,
    AdapterFile,
    Count,
    Layers,
    PredictorType,
    answer_options,
    opening_options,
    sampling,
    token_ids,
    with_answer,
)
from engine.configuration import MAX_DRAFT, MAX_SLOTS, ComputeType
from engine.planning.values import AskedThreads

if TYPE_CHECKING:
    from engine.configuration import BackendName, Configuration
    from engine.events import Event, Finished
    from engine.metrics import Metrics
    from engine.process.blocking_client import BlockingClient
    from engine.requests import GenerationRequest, Message

EXIT_CANCELLED = 130
EXIT_UNFINISHED = 1

SEED_BITS = 63
FILE = click.Path(dir_okay=False, path_type=Path)
BESIDE_MANIFEST = ("manifest_path", "model", "written_path", "metrics_path", "as_json")
"""What may be typed beside a manifest, which says all the rest."""
OF_ONE_REPLY = {
    "prompt": "the prompt",
    "raw": "--raw",
    "tokens": "--tokens",
    "preload": "--preload",
    "written_path": "--write-manifest",
    "metrics_path": "--metrics",
    "as_json": "--json",
}
"""What may not be typed beside `--batch`, and how it is called."""
OF_ONE_TEXT = ("raw", "tokens", "preload", "written_path", "batch_path", "as_json")
"""What may not be typed beside `--plain`."""
PARALLEL = 4
"""Replies of a batch that are made at once."""
USAGE = 'kvchat run "..."'
VERIFICATIONS = click.Choice(["coupled", "match", "rejection", "block"])


@click.command(name="run")
@click.argument("prompt", required=False)
@click.option(
    "--model",
    "-m",
    metavar="MODEL",
    help="Path or name of the model. [the settings' model, else the one used last]",
    shell_complete=completion.models,
)
@opening_options
@click.option("--type-k", type=KV_TYPE, help="Type of the cached keys.")
@click.option("--type-v", type=KV_TYPE, help="Type of the cached values.")
@click.option(
    "--dtype",
    type=click.Choice(get_args(ComputeType)),
    help="What the torch backend computes in. [auto: the shortest that the device multiplies]",
)
@click.option(
    "--lora",
    type=AdapterFile(),
    multiple=True,
    help="An adapter beside the model, and how strongly it works; may be repeated.",
)
@click.option("--gpu-layers", "n_gpu_layers", type=Layers(), help="Layers on the GPU.")
@click.option(
    "--predictor",
    type=PredictorType(),
    metavar="[off|lookup|suffix|combined|draft|custom:NAME]",
    help="What guesses the next tokens.",
)
@click.option(
    "--controller",
    type=click.Choice(["fixed", "band", "auto"]),
    help="What decides how many tokens are drafted.",
)
@click.option("--n-draft", type=Count(1, MAX_DRAFT), help="Tokens drafted in a round.")
@click.option("--verification", type=VERIFICATIONS, help="How drafted tokens are accepted.")
@click.option(
    "--bonus-token/--no-bonus-token",
    default=None,
    help="One more token after a draft that was accepted whole.",
)
@click.option(
    "--strict/--no-strict",
    default=None,
    help="Draft only where the text stays that of plain decoding.",
)
@click.option(
    "--temperature",
    type=sampling("temperature"),
    help="Randomness of the choice; 0 always takes the likeliest token.",
)
@click.option("--top-k", type=Count(0), help="Keep the k likeliest tokens; 0 keeps all.")
@click.option(
    "--top-p",
    type=sampling("top_p"),
    help="Keep the fewest tokens that reach this probability.",
)
@click.option(
    "--min-p",
    type=sampling("min_p"),
    help="Drop tokens below this share of the likeliest one's probability.",
)
@click.option(
    "--repetition-penalty",
    type=sampling("repetition_penalty"),
    help="Above 1, makes recent tokens less likely; 1 is off.",
)
@click.option("--system", help="System prompt, instead of that of the preset or the settings.")
@click.option("--raw", is_flag=True, help="Take the prompt as it is, without a chat template.")
@click.option(
    "--tokens",
    metavar="IDS|FILE",
    help="The prompt as token ids of the model: 1,2,3 or a file of them; - is the input.",
)
@answer_options
@click.option(
    "--preload",
    is_flag=True,
    help="Load the model and read the system prompt while the input is typed.",
)
@click.option("--stop", multiple=True, help="End the reply at this text; may be repeated.")
@click.option("--max-tokens", type=Count(), help="Most tokens of the reply, such as 2k.")
@click.option("--seed", type=SEED, help="Seed of the sampling. [a new one each time]")
@click.option(
    "--manifest",
    "manifest_path",
    type=FILE,
    help="Make a written run again, token for token; its model is checked by its hash.",
)
@click.option(
    "--write-manifest",
    "written_path",
    type=FILE,
    help="Write all that this run is made of, and its tokens; drafts are then --strict.",
)
@click.option(
    "--batch", "batch_path", type=FILE, help="Answer the prompts of this file, a JSON line each."
)
@click.option("--out", "out_path", type=FILE, help="Where a batch's results are appended.")
@click.option(
    "--parallel",
    type=Count(1, MAX_SLOTS),
    help=f"Replies of a batch that are made at once. [{PARALLEL}]",
)
@click.option("--metrics", "metrics_path", type=FILE, help="Write counts and times for Prometheus.")
@click.option(
    "--plain",
    "is_plain",
    is_flag=True,
    help="Chat line by line, for screen readers: nothing is drawn, numbers are words.",
)
@click.option("--json", "as_json", is_flag=True, help="Print text, counts and times as JSON.")
def command(
    prompt: str | None,
    model: str | None,
    draft: str | None,
    preset: str | None,
    n_ctx: int | None,
    n_threads: AskedThreads,
    kv: str | None,
    kv_budget: int | None,
    backend: "BackendName | None",
    kv_cache: str | None,
    system: str | None,
    raw: bool,
    tokens: str | None,
    preload: bool,
    stop: tuple[str, ...],
    max_tokens: int | None,
    seed: int | None,
    manifest_path: Path | None,
    written_path: Path | None,
    batch_path: Path | None,
    out_path: Path | None,
    parallel: int | None,
    metrics_path: Path | None,
    is_plain: bool,
    as_json: bool,
    **typed: object,
) -> int:
    """Answer PROMPT once, without a screen; without PROMPT, or with -, it is read from the input.

    On a terminal, control characters in the reply are shown as symbols; a pipe or a file gets the
    text as it is.

    \b
    kvchat run "Name three colours."
    kvchat run --max-tokens 200 --json < letter.txt
    kvchat run --write-manifest hello.toml "Hello"
    kvchat run --manifest hello.toml
    kvchat run --batch prompts.jsonl --out replies.jsonl --parallel 8
    kvchat run --plain
    """  # noqa: D301  click wants the backspace character itself
    from app.config import load_settings
    from app.opening import ModelRequest, loaded_engine, open_model
    from engine.requests import GenerationRequest

    if manifest_path is not None:
        return _repeat(
            manifest_path,
            model,
            written_path=written_path,
            metrics_path=metrics_path,
            as_json=as_json,
        )
    _check_batch(batch_path, out_path, parallel)
    _check_prompt(prompt, system, tokens, written_path, is_raw=raw, is_typed_meanwhile=preload)
    _refuse_beside_plain()
    ids = None if tokens is None else token_ids(tokens)
    asks_now = ids is None and not preload and batch_path is None and not is_plain
    text = prompt_text(prompt, USAGE) if asks_now else ""
    asked = ModelRequest(model, draft, preset, n_ctx, n_threads, kv, kv_budget, backend, kv_cache)
    opened = open_model(asked, load_settings().settings)
    if opened.types_note is not None:
        note(opened.types_note)
    if written_path is not None:
        # What chance and the moment decide would be other the next time.
        seed = secrets.randbits(SEED_BITS) if seed is None else seed
        typed["strict"] = typed["strict"] is not False
    configuration = _overridden(opened.configuration, typed)
    instruction = opened.system_prompt if system is None else system
    request = GenerationRequest(
        messages=() if raw or ids is not None else _messages(instruction, text),
        raw_prompt=text if raw else None,
        prompt_tokens=ids,
        sampling=configuration.sampling,
        max_tokens=max_tokens or opened.max_tokens,
        stop=stop,
        seed=seed,
    )
    if batch_path is not None and out_path is not None:
        _refuse_beside_batch()
        files = (batch_path, out_path)
        return _answer_batch(
            files, configuration, request, instruction, n_at_once=parallel or PARALLEL, n_ctx=n_ctx
        )
    since = time.time()
    with (
        loaded_engine(configuration, note, keeps_costs=written_path is None) as engine,
        _metrics(engine, metrics_path) as metrics,
    ):
        if is_plain:
            return _chat_plainly(engine, request, instruction, prompt, metrics)
        if preload:
            text = _typed_meanwhile(engine, instruction)
            request = replace(request, messages=_messages(instruction, text))
        finished = _answer(engine, request, metrics, shows_text=not as_json)
        if written_path is not None:
            prompts = (text,)
            _write(written_path, engine, prompts, instruction, request, [finished], since)
    if as_json:
        print_json(summary(finished))
    return _exit_code(finished)


def _chat_plainly(
    engine: "BlockingClient",
    request: "GenerationRequest",
    system: str,
    prompt: str | None,
    metrics: "Metrics",
) -> int:
    """Answer a prompt line by line, or, where there is none, every line of the input."""
    from app.cli.plain import PlainChat, asked_lines, converse
    from engine.requests import Message

    begin = (Message("system", system),) if system else ()
    chat = PlainChat(engine, replace(request, messages=begin), metrics.observe)
    if prompt is None:
        return converse(chat, asked_lines())
    return _exit_code(chat.ask(prompt_text(prompt, USAGE)))


def _refuse_beside_plain() -> None:
    """Make sure that nothing was typed which a chat by lines does not have.

    Raises:
        UsageError: something was.
    """
    context = click.get_current_context()
    if not context.params["is_plain"]:
        return
    for name in OF_ONE_TEXT:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(each for each in context.command.params if each.name == name)
            raise click.UsageError(f"--plain is a chat by lines: leave out {option.opts[0]}")


def _refuse_beside_batch() -> None:
    """Make sure that nothing was typed which is of one reply.

    Raises:
        UsageError: something was.
    """
    context = click.get_current_context()
    for name, title in OF_ONE_REPLY.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--batch has prompts and results of its own: leave out {title}")


def _answer_batch(
    files: tuple[Path, Path],
    configuration: "Configuration",
    base: "GenerationRequest",
    system: str,
    *,
    n_at_once: int,
    n_ctx: int | None,
) -> int:
    """Answer a file of prompts; 1 where a line could not be, 130 where it was stopped."""
    from app.batch import BatchProgress, Results, answer_all, for_batch, read_requests
    from app.opening import loaded_engine

    path, out = files
    if out.exists() and path.exists() and out.samefile(path):
        raise click.UsageError("--out names the file of the prompts: name another")
    requests, broken = read_requests(path, base, system)
    for line in broken:
        note(f"line {line.number} is not answered: {line.reason}")
    with Results(out) as results:
        done = results.done()
        left = [one for one in requests if (one.name, one.digest) not in done]
        progress = BatchProgress(n_all=len(requests), n_done=len(requests) - len(left))
        if progress.n_done:
            note(f"{progress.n_done:,} of {progress.n_all:,} are in {out} already")
        if not left:
            return int(bool(broken))
        n_at_once = min(n_at_once, len(left))
        configuration = for_batch(configuration, n_at_once, n_ctx)
        shown = SlowReading()
        try:
            with loaded_engine(configuration, note) as engine:
                steps = answer_all(engine, left, results, progress, n_at_once=n_at_once)
                for told in steps:
                    shown.answered(told.n_done, told.n_all, told.tps)
        except KeyboardInterrupt:
            shown.done()
            note(
                f"stopped: {progress.n_done:,} of {progress.n_all:,} are in {out}; the same "
                "command goes on"
            )
            return EXIT_CANCELLED
    shown.done()
    for line in progress.failed:
        note(f"line {line.number} is not answered: {line.reason}")
    note(
        f"{progress.n_done:,} of {progress.n_all:,} are in {out}: {progress.n_tokens:,} tokens in "
        f"{progress.elapsed_s:.1f} s, {progress.tps:.1f} a second, {n_at_once} at once"
    )
    return int(bool(broken or progress.failed))


def _check_batch(path: Path | None, out: Path | None, parallel: int | None) -> None:
    """Refuse a half of what is typed together.

    Raises:
        UsageError: with what is missing.
    """
    if (path is None) is not (out is None):
        raise click.UsageError("--batch FILE and --out FILE go together")
    if path is None and parallel is not None:
        raise click.UsageError("--parallel is for --batch FILE")


def _check_prompt(
    prompt: str | None,
    system: str | None,
    tokens: str | None,
    written_path: Path | None,
    *,
    is_raw: bool,
    is_typed_meanwhile: bool,
) -> None:
    """Refuse two prompts at once, and what a prompt has no place for.

    Raises:
        UsageError: with what to leave out.
    """
    if (is_raw or tokens is not None) and system:
        whose = "--raw hands the prompt" if tokens is None else "--tokens hands its ids"
        raise click.UsageError(f"{whose} over as it is: leave out --system")
    if tokens is not None and (prompt is not None or is_raw):
        raise click.UsageError("--tokens is the prompt: leave out PROMPT and --raw")
    if tokens is not None and written_path is not None:
        raise click.UsageError("a manifest has texts as prompts: leave out --tokens")
    if is_typed_meanwhile and (prompt not in (None, "-") or is_raw or tokens is not None):
        raise click.UsageError("--preload is for a prompt from the input: leave the prompt out")


def summary(finished: "Finished") -> dict[str, object]:
    """What `--json` prints: the text, the counts kept apart, and the times in seconds."""
    return {
        "text": finished.text,
        "finish_reason": finished.reason.value,
        "fits_grammar": finished.fits_grammar,
        "token_ids": finished.token_ids,
        "seed": finished.seed,
        **asdict(finished.stats),
    }


def _typed_meanwhile(engine: "BlockingClient", system: str) -> str:
    """The prompt from the input; the system prompt is read while it is typed."""
    from engine.requests import GenerationRequest, Message

    read: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def read_input() -> None:
        try:
            read.put(prompt_text("-", USAGE))
        except (click.UsageError, OSError, ValueError) as error:
            read.put(error)

    threading.Thread(target=read_input, daemon=True).start()
    if system:
        for _ in engine.reply(GenerationRequest.preload((Message("system", system),))):
            pass
    text = read.get()
    if isinstance(text, Exception):
        raise text
    return text


def _messages(system: str, text: str) -> "tuple[Message, ...]":
    from engine.requests import Message

    user = Message("user", text)
    return (Message("system", system), user) if system else (user,)


def _overridden(configuration: "Configuration", typed: dict[str, object]) -> "Configuration":
    """The configuration with what was typed in place of what was resolved."""
    from engine.configuration import Adapter, ControllerName
    from engine.speculation.registry import with_predictor

    given: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    sampling = with_answer(configuration.sampling, given)
    speculation = configuration.speculation
    if "predictor" in given:
        speculation = with_predictor(speculation, str(given.pop("predictor")))
    if lora := given.pop("lora", ()):
        given["adapters"] = tuple(map(Adapter.read, lora))
    if given.get("n_gpu_layers") == "all":
        given["n_gpu_layers"] = -1
    if "controller" in given:
        given["controller"] = ControllerName(str(given["controller"]))
    return replace(
        configuration,
        speculation=replace(speculation, **_of(speculation, given)),
        sampling=replace(sampling, **_of(sampling, given)),
        **_of(configuration, given),
    )


def _of(values: object, given: dict[str, object]) -> dict[str, Any]:
    """The typed values that are fields of a dataclass; click made the types."""
    return {name: value for name, value in given.items() if hasattr(values, name)}


def _repeat(
    path: Path,
    model: str | None,
    *,
    written_path: Path | None,
    metrics_path: Path | None,
    as_json: bool,
) -> int:
    """Make the run of a manifest; 1 where a reply is another than the recorded one."""
    from app.config import load_settings
    from app.manifests import difference, open_manifest
    from app.opening import loaded_engine
    from engine.events import FinishReason

    _refuse_beside_manifest()
    since = time.time()
    manifest, configuration = open_manifest(path, model, load_settings().settings)
    replies: list[Finished] = []
    told: list[str] = []
    with (
        loaded_engine(configuration, note, keeps_costs=False) as engine,
        _metrics(engine, metrics_path) as metrics,
    ):
        for index, request in enumerate(manifest.requests):
            replies.append(_answer(engine, request, metrics, shows_text=not as_json))
            if replies[-1].reason is FinishReason.CANCELLED:
                break
            other = difference(manifest, index, replies[-1])
            told += [] if other is None else [other]
        if written_path is not None:
            prompts, request = manifest.prompts, manifest.requests[0]
            _write(written_path, engine, prompts, manifest.system, request, replies, since)
    if as_json:
        summaries = [summary(reply) for reply in replies]
        print_json(summaries if len(manifest.prompts) > 1 else summaries[0])
    for text in told:
        note(text)
    return max(int(bool(told)), *map(_exit_code, replies))


def _refuse_beside_manifest() -> None:
    """Make sure that nothing was typed that the manifest says.

    Raises:
        UsageError: something was.
    """
    context = click.get_current_context()
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is ParameterSource.COMMANDLINE and param.name not in BESIDE_MANIFEST:
            typed = param.opts[0] if isinstance(param, click.Option) else "a prompt"
            raise click.UsageError(f"--manifest says all of the run: leave out {typed}")


@contextmanager
def _metrics(engine: "BlockingClient", path: Path | None) -> "Iterator[Metrics]":
    """What is counted of the replies in the block; it is in the file however the block ends."""
    from engine.files import replace_file
    from engine.metrics import Metrics

    metrics = Metrics()
    metrics.observe(engine.loaded)
    try:
        yield metrics
    finally:
        if path is not None:
            replace_file(path, [metrics.prometheus().encode()], is_durable=False)


def _write(
    path: Path,
    engine: "BlockingClient",
    prompts: tuple[str, ...],
    system: str,
    request: "GenerationRequest",
    replies: "list[Finished]",
    since: float,
) -> None:
    """Write the manifest of a run; one that was stopped has none."""
    from app.manifests import recorded
    from engine.events import FinishReason
    from engine.manifest import write_manifest

    if any(reply.reason is FinishReason.CANCELLED for reply in replies):
        note(f"the run was stopped, so {path} is not written")
        return
    manifest = recorded(
        engine.loaded,
        prompts=prompts,
        system=system,
        request=request,
        replies=replies,
        since=since,
    )
    write_manifest(manifest, path)


def _answer(
    engine: "BlockingClient",
    request: "GenerationRequest",
    metrics: "Metrics",
    *,
    shows_text: bool,
) -> "Finished":
    """The end of a reply that is printed as it comes; Ctrl+C stops it and keeps what there is."""
    try:
        return _follow(engine.reply(request), metrics, shows_text=shows_text)
    except KeyboardInterrupt:
        engine.client.stop()
        return _follow(engine.rest_of_reply(), metrics, shows_text=shows_text)


def _follow(events: "Iterator[Event]", metrics: "Metrics", *, shows_text: bool) -> "Finished":
    from engine.events import Finished, SpeculationChanged, TokensCommitted

    shown = ""
    for event in events:
        metrics.observe(event)
        match event:
            case TokensCommitted(text=text) if shows_text and text:
                print_text([text], nl=False)
                shown = text
            case SpeculationChanged(note=str(problem)):
                note(problem)
            case Finished():
                if shown and not shown.endswith("\n"):
                    say()
                return event
    raise AssertionError("a reply ends with `Finished`")


def _exit_code(finished: "Finished") -> int:
    from engine.events import FinishReason

    if finished.reason is FinishReason.CANCELLED:
        return EXIT_CANCELLED
    if finished.reason is FinishReason.CONTEXT:
        note("the context is full and the reply is cut: raise --ctx")
    if finished.fits_grammar is False:
        said = "the reply ended before the schema or grammar was satisfied"
        is_short = finished.reason is FinishReason.LENGTH
        note(f"{said}: raise --max-tokens" if is_short else f"{said} ({finished.reason})")
        return EXIT_UNFINISHED
    return 0
