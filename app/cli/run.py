"""`kvchat run`: one reply on standard output, streamed as text or summed up as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from app.cli.console import note, print_json, print_text, prompt_text, say
from app.cli.options import KV_TYPE, SEED, Count, Layers, PredictorType, opening_options, sampling
from engine.configuration import MAX_DRAFT

if TYPE_CHECKING:
    from engine.configuration import Configuration
    from engine.events import Event, Finished
    from engine.process.blocking_client import BlockingClient
    from engine.requests import GenerationRequest, Message

EXIT_CANCELLED = 130

VERIFICATIONS = click.Choice(["coupled", "match", "rejection", "block"])


@click.command(name="run")
@click.argument("prompt", required=False)
@click.option(
    "--model",
    "-m",
    metavar="MODEL",
    help="Path or name of the model. [the settings' model, else the one used last]",
)
@opening_options
@click.option("--type-k", type=KV_TYPE, help="Type of the cached keys.")
@click.option("--type-v", type=KV_TYPE, help="Type of the cached values.")
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
@click.option("--stop", multiple=True, help="End the reply at this text; may be repeated.")
@click.option("--max-tokens", type=Count(), help="Most tokens of the reply, such as 2k.")
@click.option("--seed", type=SEED, help="Seed of the sampling. [a new one each time]")
@click.option("--json", "as_json", is_flag=True, help="Print text, counts and times as JSON.")
def command(
    prompt: str | None,
    model: str | None,
    draft: str | None,
    preset: str | None,
    n_ctx: int | None,
    n_threads: int | None,
    kv: str | None,
    kv_budget: int | None,
    system: str | None,
    raw: bool,
    stop: tuple[str, ...],
    max_tokens: int | None,
    seed: int | None,
    as_json: bool,
    **typed: object,
) -> int:
    """Answer PROMPT once, without a screen; without PROMPT, or with -, it is read from the input.

    On a terminal, control characters in the reply are shown as symbols; a pipe or a file gets the
    text as it is.

    \b
    kvchat run "Name three colours."
    kvchat run --max-tokens 200 --json < letter.txt
    """  # noqa: D301  click wants the backspace character itself
    from app.config import load_settings
    from app.opening import ModelRequest, loaded_engine, open_model
    from engine.requests import GenerationRequest

    text = prompt_text(prompt, 'kvchat run "..."')
    if raw and system:
        raise click.UsageError("--raw hands the prompt over as it is: leave out --system")
    asked = ModelRequest(model, draft, preset, n_ctx, n_threads, kv, kv_budget)
    opened = open_model(asked, load_settings().settings)
    if opened.types_note is not None:
        note(opened.types_note)
    configuration = _overridden(opened.configuration, typed)
    instruction = opened.system_prompt if system is None else system
    request = GenerationRequest(
        messages=() if raw else _messages(instruction, text),
        raw_prompt=text if raw else None,
        sampling=configuration.sampling,
        max_tokens=max_tokens or opened.max_tokens,
        stop=stop,
        seed=seed,
    )
    with loaded_engine(configuration, note) as engine:
        finished = _answer(engine, request, shows_text=not as_json)
    if as_json:
        print_json(summary(finished))
    return _exit_code(finished)


def summary(finished: "Finished") -> dict[str, object]:
    """What `--json` prints: the text, the counts kept apart, and the times in seconds."""
    return {
        "text": finished.text,
        "finish_reason": finished.reason.value,
        "seed": finished.seed,
        **asdict(finished.stats),
    }


def _messages(system: str, text: str) -> "tuple[Message, ...]":
    from engine.requests import Message

    user = Message("user", text)
    return (Message("system", system), user) if system else (user,)


def _overridden(configuration: "Configuration", typed: dict[str, object]) -> "Configuration":
    """The configuration with what was typed in place of what was resolved."""
    from engine.configuration import ControllerName
    from engine.speculation.registry import with_predictor

    given = {name: value for name, value in typed.items() if value is not None}
    speculation = configuration.speculation
    if "predictor" in given:
        speculation = with_predictor(speculation, str(given.pop("predictor")))
    if given.get("n_gpu_layers") == "all":
        given["n_gpu_layers"] = -1
    if "controller" in given:
        given["controller"] = ControllerName(str(given["controller"]))
    return replace(
        configuration,
        speculation=replace(speculation, **_of(speculation, given)),
        sampling=replace(configuration.sampling, **_of(configuration.sampling, given)),
        **_of(configuration, given),
    )


def _of(values: object, given: dict[str, object]) -> dict[str, Any]:
    """The typed values that are fields of a dataclass; click made the types."""
    return {name: value for name, value in given.items() if hasattr(values, name)}


def _answer(
    engine: "BlockingClient", request: "GenerationRequest", *, shows_text: bool
) -> "Finished":
    """The end of a reply that is printed as it comes; Ctrl+C stops it and keeps what there is."""
    try:
        return _follow(engine.reply(request), shows_text=shows_text)
    except KeyboardInterrupt:
        engine.client.stop()
        return _follow(engine.rest_of_reply(), shows_text=shows_text)


def _follow(events: "Iterator[Event]", *, shows_text: bool) -> "Finished":
    from engine.events import Finished, SpeculationChanged, TokensCommitted

    shown = ""
    for event in events:
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

    match finished.reason:
        case FinishReason.CANCELLED:
            return EXIT_CANCELLED
        case FinishReason.CONTEXT:
            note("the context is full and the reply is cut: raise --ctx")
            return 0
        case _:
            return 0
