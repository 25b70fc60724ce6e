"""`kvchat run`: print one reply, or chat line by line."""

import queue
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click

from app.cli.options import gathered, is_typed, refuse_typed, token_ids
from app.cli.plain import PlainChat, asked_lines, converse
from app.cli.replies import (
    Replies,
    ReplyOptions,
    base_request,
    exit_code,
    loaded,
    messages_of,
    open_for_replies,
    output_options,
    reply_options,
    summary,
    write_manifest_option,
)
from app.console import print_json, prompt_text
from app.opening import ModelRequest
from engine.background import start_thread
from engine.configuration import Configuration
from engine.generation.cpu_load import ProcessorLoad, threads_beside
from engine.images import read_image
from engine.memory.hardware import thread_counts
from engine.requests import GenerationRequest

SEED_BITS = 63
CONFLICTS: dict[str, tuple[str, set[str]]] = {
    "is_plain": (
        "--plain chats line by line",
        {"raw", "tokens", "preload", "written_path", "as_json", "images"},
    ),
    "tokens": (
        "--tokens sends the token ids unchanged",
        {"prompt", "system", "raw", "written_path", "images", "preload"},
    ),
    "raw": ("--raw sends the prompt unchanged", {"system", "images", "preload"}),
    "preload": ("--preload reads the prompt from standard input", {"prompt", "images"}),
}
"""For an option: why, and which others cannot be used with it."""
PLAIN_OWNER = "chat"
"""Cache owner of `--plain` chats, so that each turn reuses the last prefix."""
USAGE = 'kvchat run "..."'


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The prompt as typed, and the form of the output."""

    prompt: str | None
    """None or `-` is standard input."""
    images: tuple[Path, ...]
    raw: bool
    tokens: str | None
    preload: bool
    is_plain: bool
    written_path: Path | None
    """The manifest to write."""
    as_json: bool

    def read_prompt(self) -> str | tuple[int, ...]:
        """The typed or piped prompt; empty if it comes later."""
        if self.tokens is not None:
            return token_ids(self.tokens)
        if self.is_plain or self.preload:
            return ""
        text = prompt_text(self.prompt, USAGE)
        images = [read_image(path, path.name).reference for path in self.images]
        return "".join(f"{each}\n" for each in images) + text


@click.command(name="run")
@click.argument("prompt", required=False)
@reply_options
@click.option(
    "--image",
    "images",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Image to put before the prompt; repeatable.",
)
@click.option("--raw", is_flag=True, help="Send the prompt without a chat template.")
@click.option(
    "--tokens",
    metavar="IDS|FILE",
    help="Prompt as token ids: a list such as 1,2,3, a file, or - for standard input.",
)
@click.option(
    "--preload", is_flag=True, help="Load the model and prefill the system prompt while you type."
)
@write_manifest_option
@click.option("--plain", "is_plain", is_flag=True, help="Chat line by line, for screen readers.")
@output_options
@gathered("options", "app.cli.run:RunOptions")
def command(
    *,
    asked: ModelRequest,
    reply: ReplyOptions,
    options: RunOptions,
    metrics_path: Path | None,
    is_verbose: bool,
    **typed: object,
) -> int:
    """Answer PROMPT once and exit. PROMPT defaults to standard input.

    On a terminal, control characters in the reply are shown as symbols; pipes and files receive
    the text unchanged.

    \b
    kvchat run "Name three colours."
    kvchat run --max-tokens 200 --json < letter.txt
    kvchat run --write-manifest hello.toml "Hello"
    kvchat run --image picture.png "What is on it?"
    kvchat run --plain
    """  # fmt: skip  # noqa: D301  click wants the backspace character itself
    for name, (why, others) in CONFLICTS.items():
        if is_typed(name):
            refuse_typed(why, others.__contains__)
    prompt = options.read_prompt()
    opened = open_for_replies(asked, reply, typed)
    configuration, request = opened.configuration, base_request(opened, reply)
    if options.written_path is not None:
        configuration = _repeatable(configuration)
        if request.seed is None:  # a random seed of the engine would be another next time
            request = replace(request, seed=secrets.randbits(SEED_BITS))
    system = opened.system_prompt
    with loaded(configuration, metrics_path, is_verbose=is_verbose) as replies:
        if options.is_plain:
            return _chat_plainly(replies, request, system, options.prompt)
        if options.preload:
            prompt = _typed_meanwhile(replies, system)
        if not isinstance(prompt, str):
            request = replace(request, prompt_tokens=prompt)
        elif options.raw:
            request = replace(request, raw_prompt=prompt)
        else:
            request = replace(request, messages=messages_of(system, prompt))
        return _answer_once(replies, request, system, options)


def _answer_once(
    replies: Replies, request: GenerationRequest, system: str, options: RunOptions
) -> int:
    since = time.time()
    finished = replies.answer(request, shows_text=not options.as_json)
    if options.written_path is not None:
        prompts = (request.raw_prompt or request.messages[-1].content,)
        replies.write_manifest(options.written_path, prompts, system, request, [finished], since)
    if options.as_json:
        print_json(summary(finished, replies.prompt))
    return exit_code(finished)


def _chat_plainly(
    replies: Replies, request: GenerationRequest, system: str, prompt: str | None
) -> int:
    """Answer the typed prompt line by line, or, without one, every line of the input."""
    begin = replace(request, messages=messages_of(system), owner=PLAIN_OWNER)
    chat = PlainChat(replies.engine, begin, replies.observe)
    if prompt is None:
        return converse(chat, asked_lines())
    return exit_code(chat.ask(prompt_text(prompt, USAGE)))


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


def _repeatable(configuration: Configuration) -> Configuration:
    """Without drafts, and with threads that do not follow the load: both can flip near ties."""
    usual = thread_counts(configuration.n_threads, configuration.n_threads_batch)
    if configuration.n_threads is None:
        free = ProcessorLoad().free_now()
        usual = (threads_beside(free, usual[0]), threads_beside(free, usual[1]))
    return replace(configuration.without_drafts, n_threads=usual[0], n_threads_batch=usual[1])
