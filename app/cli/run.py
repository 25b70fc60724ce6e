"""`kvchat run`: a reply, a file of prompts, a chat by lines, or a run of a manifest again."""

import queue
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from app.batch import with_slots
from app.cli import completion
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
    is_typed,
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
    PARALLEL,
    Replies,
    RunOptions,
    answer_batch,
    exit_code,
    loaded,
    replay,
    summary,
)
from app.config import load_settings
from app.console import note, print_json, prompt_text
from app.opening import ModelRequest, OpenedModel, open_model
from engine.background import start_thread
from engine.configuration import MAX_DRAFT, MAX_SLOTS, ComputeType, Configuration, ControllerName
from engine.generation.cpu_load import ProcessorLoad, threads_beside
from engine.images import read_image
from engine.memory.hardware import thread_counts
from engine.requests import GenerationRequest, Message
from engine.speculation.predictor_pool import with_predictor

SEED_BITS = 63
RULES = ("type_k", "type_v", "dtype", "lora", "n_gpu_layers")
"""Options that are keys of a preset."""
DRAFTS = ("controller", "n_draft", "verification", "bonus_token")
CONFLICTS: dict[str, tuple[str, set[str]]] = {
    "is_plain": (
        "--plain chats line by line",
        {"raw", "tokens", "preload", "written_path", "batch_path", "as_json", "images"},
    ),
    "batch_path": (
        "--batch reads prompts from a file and writes results to --out",
        {"prompt", "raw", "tokens", "preload", "written_path", "as_json", "is_verbose", "images"},
    ),
    "tokens": (
        "--tokens sends the token ids unchanged",
        {"prompt", "system", "raw", "written_path", "images", "preload"},
    ),
    "raw": ("--raw sends the prompt unchanged", {"system", "images", "preload"}),
    "preload": ("--preload reads the prompt from standard input", {"prompt", "images"}),
    "server": (
        "the settings of a running server cannot be changed",
        {*RULES, *DRAFTS, "predictor", "written_path"},
    ),
}
"""For an option: why, and which others cannot be used with it."""
BESIDE_MANIFEST = {
    "manifest_path", "model", "written_path", "metrics_path", "as_json", "is_verbose",
}  # fmt: skip
PLAIN_OWNER = "chat"
"""Cache owner of `--plain` chats, so that each turn reuses the last prefix."""
USAGE = 'kvchat run "..."'
VERIFICATIONS = click.Choice(["coupled", "rejection"])


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
    gathered("options", "app.cli.run_reply:RunOptions"),
)  # fmt: skip


@click.command(name="run")
@click.argument("prompt", required=False)
@run_options
def command(asked: ModelRequest, options: RunOptions, **typed: object) -> int:
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
    _check(options)
    if options.manifest_path is not None:
        return replay(options.manifest_path, asked.model, options)
    prompt = _read_prompt(options)
    rules = {name: value for name in RULES if (value := typed.pop(name)) not in (None, ())}
    asked = replace(asked, rules={**asked.rules, **rules})
    opened = open_model(asked, load_settings().settings)
    if opened.types_note is not None:
        note(opened.types_note)
    if opened.configuration.server is not None:
        why, others = CONFLICTS["server"]
        refuse_typed(why, others.__contains__)
    opened = replace(
        opened,
        configuration=_with_typed(opened.configuration, typed),
        system_prompt=opened.system_prompt if options.system is None else options.system,
    )
    if options.written_path is not None:
        opened = replace(opened, configuration=_repeatable(opened.configuration))
    request = _request(prompt, options, opened)
    if options.batch_path is not None:
        return _answer_batch(asked, opened, request, options)
    with loaded(opened.configuration, options) as replies:
        if options.is_plain:
            return _chat_plainly(replies, request, opened.system_prompt, options)
        return _answer_once(replies, request, opened.system_prompt, options)


def _check(options: RunOptions) -> None:
    if options.manifest_path is not None:
        why = "--manifest sets all options of the run"
        refuse_typed(why, lambda name: name not in BESIDE_MANIFEST)
    for name, (why, others) in CONFLICTS.items():
        if is_typed(name):
            refuse_typed(why, others.__contains__)
    if (options.batch_path is None) != (options.out_path is None):
        raise click.UsageError("use --batch FILE and --out FILE together")
    if options.parallel is not None and options.batch_path is None:
        raise click.UsageError("--parallel works only with --batch FILE")


def _read_prompt(options: RunOptions) -> str | tuple[int, ...]:
    if options.tokens is not None:
        return token_ids(options.tokens)
    if options.batch_path is not None or options.is_plain or options.preload:
        return ""
    text = prompt_text(options.prompt, USAGE)
    return "".join(f"{read_image(path, path.name).reference}\n" for path in options.images) + text


def _request(
    prompt: str | tuple[int, ...], options: RunOptions, opened: OpenedModel
) -> GenerationRequest:
    text = prompt if isinstance(prompt, str) else None
    seed = options.seed
    if seed is None and options.written_path is not None:
        seed = secrets.randbits(SEED_BITS)  # a random seed of the engine would be another next time
    is_chat = text is not None and not options.raw
    return GenerationRequest(
        messages=messages_of(opened.system_prompt, text or "") if is_chat else (),
        raw_prompt=None if is_chat else text,
        prompt_tokens=None if isinstance(prompt, str) else prompt,
        sampling=opened.configuration.sampling,
        max_tokens=options.max_tokens or opened.max_tokens,
        stop=options.stop,
        seed=seed,
    )


def _answer_once(
    replies: Replies, request: GenerationRequest, system: str, options: RunOptions
) -> int:
    since = time.time()
    if options.preload:
        request = replace(request, messages=messages_of(system, _typed_meanwhile(replies, system)))
    finished = replies.answer(request, shows_text=not options.as_json)
    if options.written_path is not None:
        prompts = (request.raw_prompt or request.messages[-1].content,)
        replies.write_manifest(options.written_path, prompts, system, request, [finished], since)
    if options.as_json:
        print_json(summary(finished, replies.prompt))
    return exit_code(finished)


def _chat_plainly(
    replies: Replies, request: GenerationRequest, system: str, options: RunOptions
) -> int:
    """Answer the typed prompt line by line, or, without one, every line of the input."""
    begin = replace(request, messages=messages_of(system), owner=PLAIN_OWNER)
    chat = PlainChat(replies.engine, begin, replies.observe)
    if options.prompt is None:
        return converse(chat, asked_lines())
    return exit_code(chat.ask(prompt_text(options.prompt, USAGE)))


def _answer_batch(
    asked: ModelRequest, opened: OpenedModel, request: GenerationRequest, options: RunOptions
) -> int:
    one = opened.configuration

    def configure(n_at_once: int) -> Configuration:
        if one.server is not None:
            return one
        several = open_model(with_slots(asked, one, n_at_once), load_settings().settings)
        return replace(several.configuration, speculation=one.speculation, sampling=one.sampling)

    return answer_batch(opened, request, options, configure)


def _typed_meanwhile(replies: Replies, system: str) -> str:
    """The prompt from the input; the system prompt is prefilled while it is typed."""
    read: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def read_input() -> None:
        try:
            read.put(prompt_text("-", USAGE))
        except (click.UsageError, OSError, ValueError) as error:
            read.put(error)

    start_thread(read_input, name="input", on_fault=lambda fault: read.put(fault.error))
    if system:
        for _ in replies.engine.reply(GenerationRequest.preload(messages_of(system))):
            pass
    text = read.get()
    if isinstance(text, Exception):
        raise text
    return text


def messages_of(system: str, *prompts: str) -> tuple[Message, ...]:
    """The system prompt, if there is one, and the prompts of the user."""
    first = (Message("system", system),) if system else ()
    return (*first, *(Message("user", each) for each in prompts))


def _with_typed(configuration: Configuration, typed: dict[str, object]) -> Configuration:
    """The configuration with the typed draft and sampling settings, which cost no memory."""
    given: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    sampling = with_answer(configuration.sampling, given)
    speculation = configuration.speculation
    if "predictor" in given:
        speculation = with_predictor(speculation, given.pop("predictor"))
    drafts = {name: given.pop(name) for name in DRAFTS if name in given}
    if "controller" in drafts:
        drafts["controller"] = ControllerName(drafts["controller"])
    return replace(
        configuration,
        speculation=replace(speculation, **drafts),
        sampling=replace(sampling, **given),
    )


def _repeatable(configuration: Configuration) -> Configuration:
    """Without drafts, and with threads that do not follow the load: both can flip near ties."""
    usual = thread_counts(configuration.n_threads, configuration.n_threads_batch)
    if configuration.n_threads is None:
        free = ProcessorLoad().free_now()
        usual = (threads_beside(free, usual[0]), threads_beside(free, usual[1]))
    return replace(configuration.without_drafts, n_threads=usual[0], n_threads_batch=usual[1])
