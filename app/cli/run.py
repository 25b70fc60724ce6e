"""`kvchat run`: one reply on standard output, streamed as text or summed up as JSON."""

import queue
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click

from app.batch import with_slots
from app.cli import completion
from app.cli.console import note, print_json, prompt_text
from app.cli.options import (
    ADAPTER,
    FILE,
    KV_TYPE,
    PREDICTOR,
    SEED,
    Count,
    Layers,
    answer_options,
    gathered,
    joined,
    opening_options,
    refuse_typed,
    sampling,
    server_option,
    system_option,
    token_ids,
    with_answer,
)
from app.cli.plain import PlainChat, asked_lines, converse
from app.cli.run_reply import (
    Outputs,
    answer,
    answer_batch,
    exit_code,
    repeat,
    summary,
    watched,
    write,
)
from app.config import load_settings
from app.opening import ModelRequest, OpenedModel, open_model
from engine.background import start_thread
from engine.configuration import MAX_DRAFT, MAX_SLOTS, ComputeType, Configuration, ControllerName
from engine.generation.cpu_load import ProcessorLoad, threads_beside
from engine.images import read_image
from engine.memory.hardware import thread_counts
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest, Message
from engine.speculation.predictor_pool import with_predictor

SEED_BITS = 63
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
    "verification", "bonus_token",
)  # fmt: skip
"""What a server was started with, and no request can say."""
RULES = ("type_k", "type_v", "dtype", "lora", "n_gpu_layers")
"""What is typed by the preset's own keys, and settled with everything else."""
PLAIN_OWNER = "chat"
"""Whose the lines of a plain chat are: each prompt is held against the one before."""
PARALLEL = 4
"""Replies of a batch that are made at once."""
USAGE = 'kvchat run "..."'
VERIFICATIONS = click.Choice(["coupled", "rejection"])


@dataclass(frozen=True, slots=True)
class Question:
    """What one reply answers, as it was typed."""

    prompt: str | None
    """None or `-` is the input."""
    system: str | None
    """None is that of the preset or the settings."""
    images: tuple[Path, ...]
    raw: bool
    tokens: str | None
    preload: bool
    stop: tuple[str, ...]
    max_tokens: int | None
    seed: int | None

    def check(self, outputs: Outputs) -> None:
        """Refuse two prompts at once, and what a prompt has no place for.

        Raises:
            UsageError: with what to leave out.
        """
        has_ids = self.tokens is not None
        if (self.raw or has_ids) and self.system:
            whose = "--tokens sends the token ids" if has_ids else "--raw sends the prompt"
            raise click.UsageError(f"{whose} unchanged: leave out --system")
        if has_ids and (self.prompt is not None or self.raw):
            raise click.UsageError("--tokens replaces the prompt: leave out PROMPT and --raw")
        if has_ids and outputs.written_path is not None:
            raise click.UsageError("a manifest stores prompts as text: leave out --tokens")
        if self.preload and (self.prompt not in (None, "-") or self.raw or has_ids):
            raise click.UsageError(
                "--preload reads the prompt from standard input: leave out PROMPT"
            )

    def read(self, *, is_asked_now: bool) -> str | tuple[int, ...]:
        """The text, or the token ids in its place; empty where it is asked for later.

        Raises:
            UsageError: the ids cannot be read, or there are images, but no text of a message.
            ImageError: one cannot be read.
        """
        ids = None if self.tokens is None else token_ids(self.tokens)
        has_text = is_asked_now and ids is None and not self.preload
        text = prompt_text(self.prompt, USAGE) if has_text else ""
        if self.images and (self.raw or not has_text):
            raise click.UsageError(
                "--image needs a text prompt: leave out --raw, --tokens and --preload"
            )
        named = (f"{read_image(path, path.name).reference}\n" for path in self.images)
        return ids or "".join(named) + text

    def request(self, prompt: str | tuple[int, ...], opened: OpenedModel) -> GenerationRequest:
        """What an engine is asked for."""
        text = prompt if isinstance(prompt, str) else None
        return GenerationRequest(
            messages=() if self.raw or text is None else _messages(opened.system_prompt, text),
            raw_prompt=text if self.raw else None,
            prompt_tokens=None if isinstance(prompt, str) else prompt,
            sampling=opened.configuration.sampling,
            max_tokens=self.max_tokens or opened.max_tokens,
            stop=self.stop,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts of a file, as they were typed."""

    batch_path: Path | None
    out_path: Path | None
    parallel: int | None

    def files(self) -> tuple[Path, Path] | None:
        """The prompts and the results; None where no batch was asked for.

        Raises:
            UsageError: a half of what is typed together is missing.
        """
        if self.batch_path is not None and self.out_path is not None:
            return self.batch_path, self.out_path
        if self.batch_path is not None or self.out_path is not None:
            raise click.UsageError("use --batch FILE and --out FILE together")
        if self.parallel is not None:
            raise click.UsageError("--parallel works only with --batch FILE")
        return None


run_options = joined(
    click.option("--model", "-m", metavar="MODEL",
                 help="Model: a path or a name. [the default in the settings, else the model "
                 "used last]",
                 shell_complete=completion.models),
    server_option,
    opening_options,
    click.option("--type-k", type=KV_TYPE, help="Type of the K cache."),
    click.option("--type-v", type=KV_TYPE, help="Type of the V cache."),
    click.option("--dtype", type=click.Choice(get_args(ComputeType)),
                 help="Data type of the torch engine. [auto: the smallest that the device "
                      "supports]"),
    click.option("--lora", type=ADAPTER, multiple=True,
                 help="LoRA adapter and its scale; repeatable."),
    click.option("--gpu-layers", "n_gpu_layers", type=Layers(), help="Number of layers on the "
                                                                     "GPU."),
    click.option("--predictor", type=PREDICTOR,
                 metavar="[off|lookup|suffix|combined|draft]",
                 help="Predictor that drafts tokens."),
    click.option("--controller", type=click.Choice(["fixed", "auto"]),
                 help="Controller of the draft length."),
    click.option("--n-draft", type=Count(1, MAX_DRAFT), help="Draft length of the fixed "
                                                             "controller."),
    click.option("--verification", type=VERIFICATIONS, help="How drafts are verified above "
                                                            "temperature 0."),
    click.option("--bonus-token/--no-bonus-token", default=None,
                 help="Emit one more token after a fully accepted draft."),
    click.option("--temperature", type=sampling("temperature"),
                 help="Sampling temperature; 0: greedy."),
    click.option("--top-k", type=Count(0),
                 help="Top-k: sample from the k most likely tokens; 0: off."),
    click.option("--top-p", type=sampling("top_p"),
                 help="Top-p: sample from the smallest set of tokens with this total probability."),
    click.option("--min-p", type=sampling("min_p"),
                 help="Min-p: minimum probability relative to the most likely token."),
    click.option("--repetition-penalty", type=sampling("repetition_penalty"),
                 help="Repetition penalty; 1: off."),
    system_option,
    click.option("--image", "images", type=click.Path(path_type=Path), multiple=True,
                 help="Image to put before the prompt; repeatable."),
    click.option("--raw", is_flag=True, help="Send the prompt without a chat template."),
    click.option("--tokens", metavar="IDS|FILE",
                 help="Prompt as token ids: a list such as 1,2,3, a file, or - for standard "
                      "input."),
    answer_options,
    click.option("--preload", is_flag=True,
                 help="Load the model and prefill the system prompt while you type."),
    click.option("--stop", multiple=True, help="End the reply at this text; repeatable."),
    click.option("--max-tokens", type=Count(), help="Maximum tokens per reply, such as 2k."),
    click.option("--seed", type=SEED, help="Sampling seed. [random]"),
    click.option("--manifest", "manifest_path", type=FILE,
                 help="Reproduce the run of this manifest token for token, with the same model "
                      "file."),
    click.option("--write-manifest", "written_path", type=FILE,
                 help="Run without drafts, and record the run in this file for --manifest."),
    click.option("--batch", "batch_path", type=FILE,
                 help="Answer the prompts of this JSONL file."),
    click.option("--out", "out_path", type=FILE,
                 help="Append the results of the batch to this file."),
    click.option("--parallel", type=Count(1, MAX_SLOTS),
                 help=f"Number of batch replies to generate at once. [{PARALLEL}]"),
    click.option("--metrics", "metrics_path", type=FILE,
                 help="Write metrics for Prometheus to this file."),
    click.option("--plain", "is_plain", is_flag=True,
                 help="Chat line by line, for screen readers."),
    click.option("--json", "as_json", is_flag=True, help="Print text, counts and times as JSON."),
    click.option("--verbose", "is_verbose", is_flag=True,
                 help="Report which part of the prompt was reused or recomputed, and why."),
    gathered("question", "app.cli.run:Question"),
    gathered("batch", "app.cli.run:Batch"),
    gathered("outputs", "app.cli.run_reply:Outputs"),
)  # fmt: skip


@click.command(name="run")
@click.argument("prompt", required=False)
@run_options
def command(
    asked: ModelRequest,
    question: Question,
    batch: Batch,
    outputs: Outputs,
    *,
    manifest_path: Path | None,
    is_plain: bool,
    **typed: object,
) -> int:
    """Answer PROMPT once and exit. PROMPT defaults to standard input.

    On a terminal, control characters in the reply are shown as symbols; pipes and files receive
    the text unchanged.

    \b
    kvchat run "Name three colours."
    kvchat run --max-tokens 200 --json < letter.txt
    kvchat run --write-manifest hello.toml "Hello"
    kvchat run --manifest hello.toml
    kvchat run --batch prompts.jsonl --out replies.jsonl --parallel 8
    kvchat run --image picture.png "What is on it?"
    kvchat run --plain
    """  # noqa: D301  click wants the backspace character itself
    if manifest_path is not None:
        return repeat(manifest_path, asked.model, outputs)
    files = batch.files()
    question.check(outputs)
    if is_plain:
        refuse_typed("--plain chats line by line", OF_ONE_TEXT.__contains__)
    prompt = question.read(is_asked_now=files is None and not is_plain)
    rules = {name: typed.pop(name) for name in RULES}
    rules = {name: value for name, value in rules.items() if value not in (None, ())}
    asked, settings = replace(asked, rules={**asked.rules, **rules}), load_settings().settings
    if asked.server is not None:
        _refuse_at_server(outputs)
    opened = open_model(asked, settings)
    if opened.types_note is not None:
        note(opened.types_note)
    if outputs.written_path is not None and question.seed is None:
        # What chance decides would be other the next time.
        question = replace(question, seed=secrets.randbits(SEED_BITS))
    opened = replace(
        opened,
        configuration=_overridden(opened.configuration, typed, outputs),
        system_prompt=opened.system_prompt if question.system is None else question.system,
    )
    request = question.request(prompt, opened)
    if files is not None:
        refuse_typed(
            "--batch reads prompts from a file and writes results to --out",
            OF_ONE_REPLY.__contains__,
        )
        one = opened.configuration

        def configure(n_at_once: int) -> Configuration:
            if one.server is not None:
                return one
            several = open_model(with_slots(asked, one, n_at_once), settings).configuration
            return replace(several, speculation=one.speculation, sampling=one.sampling)

        return answer_batch(
            *files,
            opened,
            request,
            outputs,
            n_at_once=batch.parallel or PARALLEL,
            configure=configure,
        )
    if is_plain:
        return _chat_plainly(opened, request, question, outputs)
    return _answer_once(opened, request, question, outputs)


def _answer_once(
    opened: OpenedModel, request: GenerationRequest, question: Question, outputs: Outputs
) -> int:
    """Print one reply, and write down what it is made of."""
    since, system = time.time(), opened.system_prompt
    with watched(opened.configuration, outputs) as (engine, watch):
        if question.preload:
            text = _typed_meanwhile(engine, system)
            request = replace(request, messages=_messages(system, text))
        finished = answer(engine, request, watch, shows_text=not outputs.as_json)
        if outputs.written_path is not None:
            prompts = (request.raw_prompt or request.messages[-1].content,)
            write(outputs.written_path, engine, prompts, system, request, [finished], since)
    if outputs.as_json:
        print_json(summary(finished, watch.prompt))
    return exit_code(finished)


def _chat_plainly(
    opened: OpenedModel, request: GenerationRequest, question: Question, outputs: Outputs
) -> int:
    """Answer a prompt line by line, or, where there is none, every line of the input."""
    system = opened.system_prompt
    begin = (Message("system", system),) if system else ()
    asked = replace(request, messages=begin, owner=PLAIN_OWNER)
    with watched(opened.configuration, outputs) as (engine, watch):
        chat = PlainChat(engine, asked, watch.observe)
        if question.prompt is None:
            return converse(chat, asked_lines())
        return exit_code(chat.ask(prompt_text(question.prompt, USAGE)))


def _refuse_at_server(outputs: Outputs) -> None:
    """Make sure that nothing was typed which the server was started with.

    Raises:
        UsageError: something was.
    """
    if outputs.written_path is not None:
        raise click.UsageError(
            "a manifest needs a local model file: leave out --server or --write-manifest"
        )
    refuse_typed("the settings of a running server cannot be changed", OF_A_MODEL_HERE.__contains__)


def _typed_meanwhile(engine: BlockingClient, system: str) -> str:
    """The prompt from the input; the system prompt is read while it is typed."""
    read: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def read_input() -> None:
        try:
            read.put(prompt_text("-", USAGE))
        except (click.UsageError, OSError, ValueError) as error:
            read.put(error)

    start_thread(read_input, name="input", on_fault=lambda fault: read.put(fault.error))
    if system:
        for _ in engine.reply(GenerationRequest.preload((Message("system", system),))):
            pass
    text = read.get()
    if isinstance(text, Exception):
        raise text
    return text


def _messages(system: str, text: str) -> tuple[Message, ...]:
    user = Message("user", text)
    return (Message("system", system), user) if system else (user,)


def _overridden(
    configuration: Configuration, typed: dict[str, object], outputs: Outputs
) -> Configuration:
    """The configuration with what was typed of drafts and sampling, which cost no memory."""
    if configuration.server is not None:
        _refuse_at_server(outputs)
    given: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    sampling = with_answer(configuration.sampling, given)
    speculation = configuration.speculation
    if "predictor" in given:
        speculation = with_predictor(speculation, str(given.pop("predictor")))
    if "controller" in given:
        given["controller"] = ControllerName(str(given["controller"]))
    configured = replace(
        configuration,
        speculation=replace(speculation, **_of(speculation, given)),
        sampling=replace(sampling, **_of(sampling, given)),
    )
    return configured if outputs.written_path is None else _repeatable(configured)


def _repeatable(configuration: Configuration) -> Configuration:
    """Without drafts, and with threads that do not follow the load: both can flip near ties."""
    usual = thread_counts(configuration.n_threads, configuration.n_threads_batch)
    if configuration.n_threads is None:
        free = ProcessorLoad().free_now()
        usual = (threads_beside(free, usual[0]), threads_beside(free, usual[1]))
    return replace(configuration.without_drafts, n_threads=usual[0], n_threads_batch=usual[1])


def _of(values: object, given: dict[str, object]) -> dict[str, Any]:
    """The typed values that are fields of a dataclass; click made the types."""
    return {name: value for name, value in given.items() if hasattr(values, name)}
