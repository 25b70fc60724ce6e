"""Types of option values, such as `32k`, `8GiB` and `30d`, and options that commands share."""

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial, reduce, wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from app.cli import completion
from engine.configuration import (
    Adapter,
    BackendName,
    KVTypeName,
    SamplingSettings,
    Thinking,
    bounds_of,
    predictor_named,
)
from engine.errors import EngineError, shown
from engine.files import expanded
from engine.memory.units import parse_bytes
from engine.planning.values import parse_count, parse_layers, parse_shares, parse_threads

T = TypeVar("T")
MOST = 2**31 - 1
_IDS = re.compile(r"[\s\d,\[\]]+")
"""Token ids as they are typed, or as a JSON list."""
_AGE = re.compile(r"^\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[mhdw])\s*$")
UNIT_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


Command = Callable[..., object]
FILE = click.Path(dir_okay=False, path_type=Path)
KV_TYPE = click.Choice(get_args(KVTypeName))
OPEN_KV_TYPE = click.Choice((*get_args(KVTypeName), "auto"))
"""A K/V type, or the choice by measured quality."""
SEED = click.IntRange(0, 2**63 - 1)
"""Seeds that the database of chats can store."""


class Parsed(click.ParamType[T]):
    """A value that `read` reads from the typed text; its `EngineError`s become click's."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  click's signature
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """The value; a default that is no text stays unchanged."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # a default of the option
        try:
            return self._read(value)
        except EngineError as error:
            self.fail(str(error), param, ctx)


class Count(Parsed[int]):
    """A whole number, written as `8192`, `8,192` or `8k` (8 x 1024)."""

    def __init__(self, low: int = 1, high: int = MOST) -> None:
        super().__init__("N", partial(parse_count, low=low, high=high))


class Size(Parsed[int]):
    """Bytes, written as `2GiB`; a number without a unit is GiB."""

    def __init__(self, *, can_be_zero: bool = False) -> None:
        super().__init__(
            "SIZE", lambda text: 0 if can_be_zero and text.strip() == "0" else parse_bytes(text)
        )


class Layers(Parsed[int | str]):
    """A number of layers, `all`, or `auto` if it is allowed."""

    def __init__(self, *, has_auto: bool = False) -> None:
        words = {"all", "auto"} if has_auto else {"all"}

        def read(text: str) -> int | str:
            typed = text.strip().lower()
            return typed if typed in words else parse_layers(typed)

        super().__init__("N|all", read)


class Number(click.FloatRange):
    """A finite number within bounds."""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]  # text too
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def sampling(setting: str) -> Number:
    """A setting of the sampler within its bounds."""
    limits = bounds_of(SamplingSettings)[setting].limits
    return Number(
        limits.get("ge", limits.get("gt")),
        limits.get("le", limits.get("lt")),
        min_open="gt" in limits,
        max_open="lt" in limits,
    )


def _adapter(text: str) -> str:
    adapter = Adapter.read(text)
    path, _, scale = text.rpartition(":")
    if not adapter.path.exists() and path and expanded(path).is_file():
        raise click.BadParameter(f"{scale!r} is not a scale: write a number such as 0.5")
    click.Path(exists=True, dir_okay=False).convert(str(adapter.path), None, None)
    return adapter.text


def _age(text: str) -> float:
    match = _AGE.match(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not an age: write an age such as 30d, 12h or 2w")
    return float(match["number"]) * UNIT_S[match["unit"]]


def _lazily(place: str) -> Callable[[str], Any]:
    """A function by module and name, which is imported when it is called."""

    def call(text: str) -> Any:
        return resolve_name(place)(text)

    return call


def _kv_types(text: str) -> str:
    from engine.planning.cache_types import type_rules

    try:
        type_rules(text, None)
    except EngineError as error:
        raise click.BadParameter(f"{error}, or auto") from error
    return text


def _projector(text: str) -> str:
    if text != "off":
        click.Path(exists=True, dir_okay=False).convert(text, None, None)
    return text


ADAPTER = Parsed("FILE[:SCALE]", _adapter)
"""An existing adapter file with its scale."""
GPUS: Parsed[Any] = Parsed("SIZE|HOST:GPUS", _lazily("engine.memory.cards:parse_devices"))
"""GPUs by size or card, of this machine or of another: `2x24GiB`, `host1:2x24GiB`."""
AGE = Parsed("AGE", _age)
"""Seconds, written as `30d`."""
PREDICTOR = Parsed("predictor", predictor_named)
RULE: Parsed[Any] = Parsed("KEY=VALUE", _lazily("engine.presets.preset:parse_rule"))
"""A key of a preset, with its value."""
SHARES = Parsed("SHARES", parse_shares)
"""The share of each GPU, written as `3:1` or `60,40`."""


def joined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order in which the help lists them."""
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


def gathered(name: str, place: str) -> Callable[[Command], Command]:
    """A decorator: the command receives one dataclass for the options that are its fields.

    `place` is the dataclass as `module:Name`, which is imported when the command runs.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_value(**given: object) -> object:
            made = resolve_name(place)
            names = [each.name for each in fields(made) if each.name in given]
            value = made(**{each: given.pop(each) for each in names})
            return command(**{name: value}, **given)

        return with_value

    return decorate


opens_model = gathered("asked", "app.opening:ModelRequest")


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
draft_option = click.option(
    "--draft", metavar="MODEL", help="Draft model: a small model with the same vocabulary."
)
preset_option = click.option(
    "--preset",
    metavar="NAME",
    help="Preset: a name or a file.",
    shell_complete=completion.presets,
)
ctx_option = click.option(
    "--ctx", "n_ctx", type=Count(), help="Context length in tokens, such as 32k."
)
system_option = click.option(
    "--system", help="System prompt; replaces the system prompt of the preset or the settings."
)
kv_options = joined(
    click.option("--kv", type=Parsed("auto|TYPE|K/V", _kv_types),
                 help="K/V types: one type such as q8_0, a K and a V type such as q8_0/q5_1, or "
                      "auto (the fastest types that passed `kvchat cache-quality`)."),
    click.option("--kv-budget", type=Size(), help="Maximum size of the KV cache, such as 1GiB."),
)  # fmt: skip
"""K/V types and their budget."""

mmproj_option = click.option(
    "--mmproj",
    type=Parsed("FILE|off", _projector),
    help="Image projector (mmproj). [the only matching file in the folder of the model]",
)
threads_option = click.option(
    "--threads",
    "n_threads",
    type=Parsed("N|auto", parse_threads),
    help="Number of decode threads; auto adapts it to the load of the machine.",
)
answer_options = joined(
    click.option("--json-schema", metavar="FILE",
                 help="Reply with JSON that satisfies this schema."),
    click.option("--grammar", metavar="FILE",
                 help="Reply with text that satisfies this GBNF or Lark grammar."),
    click.option("--stop-token", "stop_tokens", type=Count(0), multiple=True,
                 help="End the reply at this token id; repeatable."),
    click.option("--thinking", type=click.Choice(get_args(Thinking)),
                 help="Whether a reasoning model thinks; auto follows the chat template."),
    click.option("--thinking-budget", type=Count(0), metavar="TOKENS",
                 help="Maximum thinking tokens; 0: no limit."),
)  # fmt: skip
"""Format and end of a reply."""


def with_answer(sampling: SamplingSettings, given: dict[str, object]) -> SamplingSettings:
    """The settings with the values of `answer_options`, which are removed from `given`.

    Raises:
        UsageError: both a schema and a grammar were typed.
        GrammarError: the file cannot be read, or is not valid.
    """
    schema, grammar = given.pop("json_schema", None), given.pop("grammar", None)
    stop_tokens = given.pop("stop_tokens", ())
    if schema and grammar:
        raise click.UsageError("use --json-schema or --grammar, not both")
    if schema or grammar:
        typed = replace(sampling, json_schema=str(schema or ""), grammar=str(grammar or ""))
        sampling = typed.with_absolute_paths()
    if isinstance(stop_tokens, tuple) and stop_tokens:
        sampling = replace(sampling, stop_tokens=stop_tokens)
    if sampling.json_schema or sampling.grammar:
        from engine.grammar.source import grammar_of

        grammar_of(sampling)  # errors come before a model is loaded
    return sampling


def is_typed(name: str) -> bool:
    """Whether a parameter of the running command was typed."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def refuse_typed(why: str, is_refused: Callable[[str], bool]) -> None:
    """Refuse typed parameters that do not go with another option; `why` begins the message."""
    context = click.get_current_context()
    for param in context.command.params:
        name = param.name or ""
        if is_refused(name) and is_typed(name):
            is_off = context.params.get(name) is False and bool(param.secondary_opts)
            option = (param.secondary_opts if is_off else param.opts)[0]
            typed = option if isinstance(param, click.Option) else f"the {name}"
            raise click.UsageError(f"{why}: leave out {typed}")


def token_ids(typed: str) -> tuple[int, ...]:
    """The typed token ids, or those in the file of that name; `-` is standard input."""
    text = typed
    if _IDS.fullmatch(typed) is None:
        from app.console import read_input
        from engine.files import RECORDS_BYTES, read_text, reason_of

        try:
            is_input = typed == "-"
            text = read_input() if is_input else read_text(Path(typed), limit=RECORDS_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            why = f"{typed} is not a list or file of token ids: {reason_of(error)}"
            raise click.UsageError(why) from error
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    wrong = next((n for n, word in enumerate(words) if not word.isdecimal()), None)
    if wrong is not None:
        raise click.UsageError(
            f"token id {wrong + 1} is {shown(words[wrong])}, not a whole number: write token ids "
            "such as 1,2,3"
        )
    if not words:
        raise click.UsageError("no token ids: write token ids such as 1,2,3, or specify a file")
    return tuple(map(int, words))


backend_choice = click.option(
    "--backend",
    type=click.Choice(get_args(BackendName)),
    help="Engine: llama.cpp, or torch to inspect keys and values.",
)


set_option = click.option(
    "--set", "rules", type=RULE, multiple=True, callback=lambda _, __, rules: dict(rules),
    help="Set any preset key, such as n_ubatch=256 or kv_cache=nf4; repeatable.",
)  # fmt: skip
"""Settings without an option of their own."""
backend_options = joined(backend_choice, set_option)
"""Engine, and settings without an option of their own."""

server_option = click.option(
    "--server",
    type=Parsed("URL", _lazily("engine.servers:parse_server")),
    help="URL of a llama-server, vLLM, SGLang, Ollama or OpenAI-compatible server; set "
    "the API key in the environment variable KVCHAT_SERVER_KEY.",
)

opening_options = joined(
    kv_options,
    backend_options,
    draft_option,
    mmproj_option,
    preset_option,
    ctx_option,
    threads_option,
    opens_model,
)
"""Options for loading a model; its path or name is a separate argument or option."""
