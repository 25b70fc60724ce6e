"""`kvchat run`: one reply on standard output, streamed as text or summed up as JSON."""

import queue
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from app.cli import completion
from app.cli.console import note, print_json, prompt_text
from app.cli.options import (
    ADAPTER,
    KV_TYPE,
    PREDICTOR,
    SEED,
    Count,
    Layers,
    answer_options,
    joined,
    opening_options,
    refuse_typed,
    sampling,
    server_option,
    system_option,
    token_ids,
    with_answer,
)
from app.cli.run_reply import (
    Watch,
    answer,
    answer_batch,
    exit_code,
    repeat,
    summary,
    watched,
    write,
)
from engine.configuration import MAX_DRAFT, MAX_SLOTS, ComputeType

if TYPE_CHECKING:
    from app.opening import ModelRequest
    from engine.configuration import Configuration
    from engine.process.blocking_client import BlockingClient
    from engine.requests import GenerationRequest, Message

SEED_BITS = 63
FILE = click.Path(dir_okay=False, path_type=Path)
OF_ONE_TEXT = frozenset(
    {"raw", "tokens", "preload", "written_path", "batch_path", "as_json", "images"}
)
"""What may not be typed beside `--plain`."""
OF_ONE_REPLY = frozenset(
    {"prompt", "raw", "tokens", "preload", "written_path", "as_json", "is_verbose", "images"}
)
"""What may not be typed beside `--batch`."""
OF_A_MODEL_HERE = (
    "type_k", "type_v", "dtype", "lora", "n_gpu_layers", "predictor", "controller", "n_draft",
    "verification", "bonus_token", "strict",
)  # fmt: skip
"""What a server was started with, and no request can say."""
PLAIN_OWNER = "chat"
"""Whose the lines of a plain chat are: each prompt is held against the one before."""
PARALLEL = 4
"""Replies of a batch that are made at once."""
USAGE = 'kvchat run "..."'
VERIFICATIONS = click.Choice(["coupled", "match", "rejection", "block"])


run_options = joined(
    click.option("--model", "-m", metavar="MODEL",
                 help="Path or name of the model. [the settings' model, else the one used last]",
                 shell_complete=completion.models),
    server_option,
    opening_options,
    click.option("--type-k", type=KV_TYPE, help="Type of the cached keys."),
    click.option("--type-v", type=KV_TYPE, help="Type of the cached values."),
    click.option("--dtype", type=click.Choice(get_args(ComputeType)),
                 help="What the torch backend computes in. [auto: the shortest that the device "
                 "multiplies]"),
    click.option("--lora", type=ADAPTER, multiple=True,
                 help="An adapter beside the model, and how strongly it works; may be repeated."),
    click.option("--gpu-layers", "n_gpu_layers", type=Layers(), help="Layers on the GPU."),
    click.option("--predictor", type=PREDICTOR,
                 metavar="[off|lookup|suffix|combined|draft|custom:NAME]",
                 help="What guesses the next tokens."),
    click.option("--controller", type=click.Choice(["fixed", "band", "auto"]),
                 help="What decides how many tokens are drafted."),
    click.option("--n-draft", type=Count(1, MAX_DRAFT), help="Tokens drafted in a round."),
    click.option("--verification", type=VERIFICATIONS, help="How drafted tokens are accepted."),
    click.option("--bonus-token/--no-bonus-token", default=None,
                 help="One more token after a draft that was accepted whole."),
    click.option("--strict/--no-strict", default=None,
                 help="Draft only where the text stays that of plain decoding."),
    click.option("--temperature", type=sampling("temperature"),
                 help="Randomness of the choice; 0 always takes the likeliest token."),
    click.option("--top-k", type=Count(0), help="Keep the k likeliest tokens; 0 keeps all."),
    click.option("--top-p", type=sampling("top_p"),
                 help="Keep the fewest tokens that reach this probability."),
    click.option("--min-p", type=sampling("min_p"),
                 help="Drop tokens below this share of the likeliest one's probability."),
    click.option("--repetition-penalty", type=sampling("repetition_penalty"),
                 help="Above 1, makes recent tokens less likely; 1 is off."),
    system_option,
    click.option("--image", "images", type=click.Path(path_type=Path), multiple=True,
                 help="An image that goes before the prompt; may be repeated."),
    click.option("--raw", is_flag=True, help="Take the prompt as it is, without a chat template."),
    click.option("--tokens", metavar="IDS|FILE",
                 help="The prompt as token ids of the model: 1,2,3 or a file of them; - is the "
                 "input."),
    answer_options,
    click.option("--preload", is_flag=True,
                 help="Load the model and read the system prompt while the input is typed."),
    click.option("--stop", multiple=True, help="End the reply at this text; may be repeated."),
    click.option("--max-tokens", type=Count(), help="Most tokens of the reply, such as 2k."),
    click.option("--seed", type=SEED, help="Seed of the sampling. [a new one each time]"),
    click.option("--manifest", "manifest_path", type=FILE,
                 help="Make a written run again, token for token; its model is checked by its "
                 "hash."),
    click.option("--write-manifest", "written_path", type=FILE,
                 help="Write all that this run is made of, and its tokens; drafts are then "
                 "--strict."),
    click.option("--batch", "batch_path", type=FILE,
                 help="Answer the prompts of this file, a JSON line each."),
    click.option("--out", "out_path", type=FILE, help="Where a batch's results are appended."),
    click.option("--parallel", type=Count(1, MAX_SLOTS),
                 help=f"Replies of a batch that are made at once. [{PARALLEL}]"),
    click.option("--metrics", "metrics_path", type=FILE,
                 help="Write counts and times for Prometheus."),
    click.option("--plain", "is_plain", is_flag=True,
                 help="Chat line by line, for screen readers: nothing is drawn, numbers are "
                 "words."),
    click.option("--json", "as_json", is_flag=True, help="Print text, counts and times as JSON."),
    click.option("--verbose", "is_verbose", is_flag=True,
                 help="Say what of the prompt was reused, what was read again, and why."),
)  # fmt: skip


@click.command(name="run")
@click.argument("prompt", required=False)
@run_options
def command(
    asked: "ModelRequest",
    prompt: str | None,
    system: str | None,
    images: tuple[Path, ...],
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
    is_verbose: bool,
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
    kvchat run --image picture.png "What is on it?"
    kvchat run --plain
    """  # noqa: D301  click wants the backspace character itself
    from app.config import load_settings
    from app.opening import loaded_engine, open_model
    from engine.requests import GenerationRequest

    if manifest_path is not None:
        return repeat(
            manifest_path,
            asked.model,
            written_path=written_path,
            metrics_path=metrics_path,
            as_json=as_json,
            is_verbose=is_verbose,
        )
    _check_batch(batch_path, out_path, parallel)
    _check_prompt(prompt, system, tokens, written_path, is_raw=raw, is_typed_meanwhile=preload)
    if is_plain:
        refuse_typed("--plain is a chat by lines", OF_ONE_TEXT.__contains__)
    ids = None if tokens is None else token_ids(tokens)
    asks_now = ids is None and not preload and batch_path is None and not is_plain
    text = prompt_text(prompt, USAGE) if asks_now else ""
    text = _references(images, is_before_text=asks_now and not raw) + text
    opened = open_model(asked, load_settings().settings)
    if opened.types_note is not None:
        note(opened.types_note)
    _refuse_at_server(opened.configuration, typed, written_path)
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
        refuse_typed("--batch has prompts and results of its own", OF_ONE_REPLY.__contains__)
        return answer_batch(
            batch_path,
            out_path,
            configuration,
            request,
            instruction,
            metrics_path=metrics_path,
            n_at_once=parallel or PARALLEL,
            n_ctx=asked.n_ctx,
        )
    since = time.time()
    with (
        loaded_engine(configuration, note, keeps_costs=written_path is None) as engine,
        watched(engine, metrics_path, is_verbose=is_verbose) as watch,
    ):
        if is_plain:
            return _chat_plainly(engine, request, instruction, prompt, watch)
        if preload:
            text = _typed_meanwhile(engine, instruction)
            request = replace(request, messages=_messages(instruction, text))
        finished = answer(engine, request, watch, shows_text=not as_json)
        if written_path is not None:
            prompts = (text,)
            write(written_path, engine, prompts, instruction, request, [finished], since)
    if as_json:
        print_json(summary(finished, watch.prompt))
    return exit_code(finished)


def _references(images: tuple[Path, ...], *, is_before_text: bool) -> str:
    """How a message names images that go before its text.

    Raises:
        UsageError: there is no text of a message.
        ImageError: one cannot be read.
    """
    from engine.images import read_image

    if images and not is_before_text:
        raise click.UsageError("--image goes before a prompt: leave out --raw, --tokens, --preload")
    return "".join(f"{read_image(path, path.name).reference}\n" for path in images)


def _chat_plainly(
    engine: "BlockingClient",
    request: "GenerationRequest",
    system: str,
    prompt: str | None,
    watch: Watch,
) -> int:
    """Answer a prompt line by line, or, where there is none, every line of the input."""
    from app.cli.plain import PlainChat, asked_lines, converse
    from engine.requests import Message

    begin = (Message("system", system),) if system else ()
    asked = replace(request, messages=begin, owner=PLAIN_OWNER)
    chat = PlainChat(engine, asked, watch.observe)
    if prompt is None:
        return converse(chat, asked_lines())
    return exit_code(chat.ask(prompt_text(prompt, USAGE)))


def _refuse_at_server(
    configuration: "Configuration", typed: dict[str, object], written_path: Path | None
) -> None:
    """Make sure that nothing was typed which the server was started with.

    Raises:
        UsageError: something was.
    """
    if configuration.server is None:
        return
    if written_path is not None:
        raise click.UsageError("a manifest names the model's file, which the server has")
    asked = [f"--{name.replace('_', '-')}" for name in OF_A_MODEL_HERE if typed.get(name)]
    if asked:
        raise click.UsageError(f"{', '.join(asked)} is for models here: the server has its own")


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
