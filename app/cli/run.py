"""`kvchat run`: one reply on standard output, streamed as text or summed up as JSON."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from app.cli.predictor_type import PredictorType
from engine.configuration import MAX_DRAFT

if TYPE_CHECKING:
    from engine.configuration import Configuration
    from engine.events import Event, Finished
    from engine.requests import GenerationRequest, Message
    from engine.worker_client import WorkerClient

POLL_S = 0.25
EXIT_CANCELLED = 130

VERIFICATIONS = click.Choice(["coupled", "match", "rejection", "block"])
KV_TYPES = click.Choice(["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])


@click.command(name="run")
@click.argument("prompt", required=False)
@click.option("--model", "-m", help="Path or name of the model; the one used last without it.")
@click.option("--draft", metavar="MODEL", help="A small model of the same vocabulary that drafts.")
@click.option("--preset", metavar="NAME", help="A preset by name, or the path of its file.")
@click.option("--ctx", "n_ctx", type=click.IntRange(1), help="Tokens of context.")
@click.option("--type-k", type=KV_TYPES, help="Type of the cached keys.")
@click.option("--type-v", type=KV_TYPES, help="Type of the cached values.")
@click.option("--gpu-layers", "n_gpu_layers", type=click.IntRange(-1), help="-1 is all.")
@click.option("--threads", "n_threads", type=click.IntRange(1), help="Threads while decoding.")
@click.option(
    "--predictor",
    type=PredictorType(),
    metavar="[off|lookup|suffix|combined|draft|custom:NAME]",
    help="Who drafts.",
)
@click.option(
    "--controller", type=click.Choice(["fixed", "band", "auto"]), help="Rule of the length."
)
@click.option("--n-draft", type=click.IntRange(1, MAX_DRAFT), help="Tokens drafted a round.")
@click.option("--verification", type=VERIFICATIONS, help="How a draft is judged.")
@click.option("--bonus-token/--no-bonus-token", default=None, help="A token behind a full draft.")
@click.option("--strict/--no-strict", default=None, help="Draft only what rounds as plain steps.")
@click.option("--temperature", type=float, help="Spread of the draw; 0 is greedy.")
@click.option("--top-k", type=int, help="Keep the k likeliest tokens; 0 keeps all.")
@click.option("--top-p", type=float, help="Keep the fewest tokens that reach this probability.")
@click.option("--min-p", type=float, help="Drop tokens below this share of the likeliest.")
@click.option("--repetition-penalty", type=float, help="Makes recent tokens less likely; 1 is off.")
@click.option("--system", default="", help="System prompt.")
@click.option("--raw", is_flag=True, help="Use the prompt as it is, without a chat template.")
@click.option("--stop", multiple=True, help="End the reply at this text; may be given again.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens to generate.")
@click.option("--seed", type=int, help="Seed of the sampling; drawn afresh without it.")
@click.option("--json", "as_json", is_flag=True, help="Print text, counts and times as JSON.")
def command(
    prompt: str | None,
    model: str | None,
    draft: str | None,
    preset: str | None,
    system: str,
    raw: bool,
    stop: tuple[str, ...],
    max_tokens: int | None,
    seed: int | None,
    as_json: bool,
    **typed: object,
) -> int:
    """Answer PROMPT once, without a screen; without PROMPT, or with -, it is read from the input.

    \b
    kvchat run "Name three colours."
    kvchat run --max-tokens 200 --json < letter.txt
    """  # noqa: D301  click wants the backspace character itself
    from engine.requests import GenerationRequest

    text = _prompt_text(prompt)
    configuration = _configuration(model, draft, preset, typed)
    request = GenerationRequest(
        messages=() if raw else _messages(system, text),
        raw_prompt=text if raw else None,
        sampling=configuration.sampling,
        max_tokens=max_tokens,
        stop=stop,
        seed=seed,
    )
    with _engine(configuration) as client:
        finished = _answer(client, request, shows_text=not as_json)
    if as_json:
        click.echo(json.dumps(summary(finished), ensure_ascii=False, indent=2))
    return _exit_code(finished)


def summary(finished: "Finished") -> dict[str, object]:
    """Give what `--json` prints: the text, the counts kept apart, and the times in seconds."""
    return {
        "text": finished.text,
        "finish_reason": finished.reason.value,
        "seed": finished.seed,
        **asdict(finished.stats),
    }


def _prompt_text(prompt: str | None) -> str:
    if prompt not in (None, "-"):
        return str(prompt)
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError('no prompt: write kvchat run "...", or pipe one in')
    return sys.stdin.read()


def _messages(system: str, text: str) -> "tuple[Message, ...]":
    from engine.requests import Message

    user = Message("user", text)
    return (Message("system", system), user) if system else (user,)


def _configuration(
    model: str | None, draft: str | None, preset: str | None, typed: dict[str, object]
) -> "Configuration":
    from app import locations
    from app.configure import configure, draft_path, usual_model
    from app.settings import load_settings
    from engine.errors import ModelFileError
    from engine.memory.fit import with_n_ctx
    from engine.model.library import find_model
    from engine.presets.library import find_preset

    settings = load_settings().settings
    folders = locations.model_folders(settings.models.folders)
    rules = find_preset(preset, locations.presets_dir()) if preset else None
    name = model or (rules.model if rules else None)
    path = find_model(name, folders) if name else usual_model(settings, folders, None)
    if path is None:
        raise ModelFileError(
            "there is no model on this machine: `kvchat models install-starter` fetches a small "
            "one, `kvchat where` shows the folders that were searched"
        )
    draft_model = draft_path(draft, rules, folders)
    configuration = configure(path, draft_model, rules, settings)
    n_ctx = typed.pop("n_ctx")
    if isinstance(n_ctx, int):
        configuration = with_n_ctx(configuration, n_ctx)
    return _overridden(configuration, typed)


def _overridden(configuration: "Configuration", typed: dict[str, object]) -> "Configuration":
    """Put what was typed over what was resolved."""
    from engine.configuration import ControllerName
    from engine.speculation.spelling import with_predictor

    given = {name: value for name, value in typed.items() if value is not None}
    speculation = configuration.speculation
    if "predictor" in given:
        speculation = with_predictor(speculation, str(given.pop("predictor")))
    if "controller" in given:
        given["controller"] = ControllerName(str(given["controller"]))
    return replace(
        configuration,
        speculation=replace(speculation, **_of(speculation, given)),
        sampling=replace(configuration.sampling, **_of(configuration.sampling, given)),
        **_of(configuration, given),
    )


def _of(values: object, given: dict[str, object]) -> dict[str, Any]:
    """Give what was typed of the fields that a dataclass has; click made the types."""
    return {name: value for name, value in given.items() if hasattr(values, name)}


@contextmanager
def _engine(configuration: "Configuration") -> "Iterator[WorkerClient]":
    from app import locations
    from engine.worker_client import WorkerClient

    client = WorkerClient(
        log_path=locations.worker_log_path(),
        memory_path=locations.build_memory_path(),
        costs_path=locations.costs_path(),
    )
    try:
        client.load(configuration)
        _wait_for_load(client)
        yield client
    finally:
        client.close()


def _answer(
    client: "WorkerClient", request: "GenerationRequest", *, shows_text: bool
) -> "Finished":
    """Follow the reply to its end; Ctrl+C stops it and keeps what there is."""
    client.generate(request)
    try:
        return _follow(client, shows_text=shows_text)
    except KeyboardInterrupt:
        client.stop()
        return _follow(client, shows_text=shows_text)


def _wait_for_load(client: "WorkerClient") -> None:
    from engine.events import Loaded

    while True:
        for event in client.poll(POLL_S):
            _raise_on_failure(event)
            if isinstance(event, Loaded):
                for note in event.notes:
                    click.echo(f"kvchat: {note}", err=True)
                return


def _follow(client: "WorkerClient", *, shows_text: bool) -> "Finished":
    from engine.events import Finished, SpeculationChanged, TokensCommitted

    shown = ""
    while True:
        for event in client.poll(POLL_S):
            _raise_on_failure(event)
            match event:
                case TokensCommitted(text=text) if shows_text and text:
                    click.echo(text, nl=False)
                    shown = text
                case SpeculationChanged(note=str(note)):
                    click.echo(f"kvchat: {note}", err=True)
                case Finished():
                    if shown and not shown.endswith("\n"):
                        click.echo()
                    return event


def _raise_on_failure(event: "Event") -> None:
    from engine.errors import WorkerError
    from engine.events import Failed, WorkerStopped

    match event:
        case Failed(title, message) | WorkerStopped(title, message, will_restart=False):
            raise WorkerError(f"{title}: {message}")
        case WorkerStopped(title, message):
            click.echo(f"kvchat: {title}: {message}", err=True)


def _exit_code(finished: "Finished") -> int:
    from engine.events import FinishReason

    match finished.reason:
        case FinishReason.CANCELLED:
            return EXIT_CANCELLED
        case FinishReason.CONTEXT:
            click.echo("kvchat: the context is full and the reply is cut: raise --ctx", err=True)
            return 0
        case _:
            return 0
