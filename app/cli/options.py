"""What options take, such as `32k`, `8GiB` and `30d`, and the options that commands share."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import reduce, wraps
from pathlib import Path
from typing import get_args

import click

from app.cli import completion
from engine.configuration import (
    DECODE_PLAN,
    Adapter,
    BackendName,
    KVTypeName,
    SamplingSettings,
    Thinking,
    sampling_bounds,
)
from engine.errors import EngineError, shown
from engine.memory.units import parse_bytes
from engine.planning.values import parse_count, parse_layers, parse_shares, parse_threads

MOST = 2**31 - 1
_IDS = re.compile(r"[\s\d,\[\]]+")
"""Token ids as they are typed, or as a JSON list."""
AGE = re.compile(r"^\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[mhdw])\s*$")
UNIT_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


Command = Callable[..., object]
KV_TYPE = click.Choice(get_args(KVTypeName))
OPEN_KV_TYPE = click.Choice((*get_args(KVTypeName), "auto"))
"""A type, or whatever the measured figures allow."""
SEED = click.IntRange(0, 2**63 - 1)
"""What the database of chats can keep."""


class Count(click.ParamType[int]):
    """A whole number, written as `8192`, `8,192` or `8k` (8 x 1024)."""

    name = "N"

    def __init__(self, low: int = 1, high: int = MOST) -> None:
        self._low = low
        self._high = high

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number."""
        try:
            return parse_count(str(value), low=self._low, high=self._high)
        except EngineError as error:
            self.fail(str(error), param, ctx)


class Number(click.FloatRange):
    """A number within bounds; `nan` is none."""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]  # text too
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


def sampling(setting: str) -> Number:
    """A setting of the sampler within its bounds."""
    limits = sampling_bounds()[setting].limits
    return Number(
        limits.get("ge", limits.get("gt")),
        limits.get("le", limits.get("lt")),
        min_open="gt" in limits,
        max_open="lt" in limits,
    )


class Layers(click.ParamType[int | str]):
    """A number of layers, `all`, or `auto` where it is allowed."""

    name = "N|all"

    def __init__(self, *, has_auto: bool = False) -> None:
        self._has_auto = has_auto

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  click's signature
        return self.name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """The number or the word."""
        text = str(value).strip().lower()
        if text == "all" or (text == "auto" and self._has_auto):
            return text
        try:
            return parse_layers(text)
        except EngineError as error:
            self.fail(str(error), param, ctx)


class Threads(click.ParamType[int | str]):
    """A number of threads, or `auto`: as many as are quickest at the moment."""

    name = "N|auto"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """The number or the word."""
        try:
            return parse_threads(str(value))
        except EngineError as error:
            self.fail(str(error), param, ctx)


class AdapterFile(click.ParamType[str]):
    """An adapter that is there, with its scale: `FILE` or `FILE:SCALE`."""

    name = "FILE[:SCALE]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text that was typed, if it names a file."""
        adapter = Adapter.read(str(value))
        click.Path(exists=True, dir_okay=False).convert(str(adapter.path), param, ctx)
        return adapter.spelled


class Shares(click.ParamType[tuple[float, ...]]):
    """The share of each GPU, written as `3:1` or `60,40`."""

    name = "SHARES"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """The shares."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_shares(str(value))
        except EngineError as error:
            self.fail(str(error), param, ctx)


class Size(click.ParamType[int]):
    """Bytes, written as `2GiB`; a number without a unit is GiB."""

    name = "SIZE"

    def __init__(self, *, can_be_zero: bool = False) -> None:
        self._can_be_zero = can_be_zero

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The bytes of a size."""
        if isinstance(value, int):
            return value
        if self._can_be_zero and value.strip() == "0":
            return 0
        try:
            return parse_bytes(value)
        except EngineError as error:
            self.fail(str(error), param, ctx)


class Age(click.ParamType[float]):
    """Seconds, written as `30d`."""

    name = "AGE"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The seconds of an age."""
        if isinstance(value, float):
            return value
        match = AGE.match(value)
        if match is None:
            self.fail(f"{value!r} is no age: write it as 30d, 12h or 2w", param, ctx)
        return float(match["number"]) * UNIT_S[match["unit"]]


class PredictorType(click.ParamType[str]):
    """A predictor as `engine.speculation.registry` reads it, checked when the command is read."""

    name = "predictor"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text that was typed, if it names a predictor."""
        from engine.configuration import SpeculationSettings
        from engine.errors import PresetError
        from engine.speculation.registry import with_predictor

        spelled = str(value)
        try:
            with_predictor(SpeculationSettings(), spelled)
        except PresetError as error:
            self.fail(str(error), param, ctx)
        return spelled


def joined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order in which the help lists them."""
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


def opens_model(command: Command) -> Command:
    """A command that is given `asked`, a `ModelRequest`, for all that was typed of its fields."""

    @wraps(command)
    def with_request(**given: object) -> object:
        from app.opening import ModelRequest

        names = [each.name for each in fields(ModelRequest) if each.name in given]
        asked = ModelRequest(**{name: given.pop(name) for name in names})  # type: ignore[arg-type]  # click made the types
        return command(asked=asked, **given)

    return with_request


class ServerAddress(click.ParamType[str]):
    """The address of a server, as `http://host:8080` or `host:8080`."""

    name = "URL"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The address as everything else takes it."""
        from engine.model.server_address import parse_server

        try:
            return parse_server(str(value))
        except EngineError as error:
            self.fail(str(error), param, ctx)


class KVTypes(click.ParamType[str]):
    """Types of the cache: `auto`, one for keys and values, or two as in `q8_0/q4_0`."""

    name = "auto|TYPE|K/V"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text that was typed, if it names types."""
        from engine.planning.cache_types import type_rules

        try:
            type_rules(str(value), None)
        except EngineError as error:
            self.fail(f"{error}, or auto", param, ctx)
        return str(value)


kv_options = joined(
    click.option(
        "--kv",
        type=KVTypes(),
        metavar="auto|TYPE|K/V",
        help="Types of the cache: auto is the quickest that keeps the gates as measured by "
        "`kvchat cache-quality`; or one, or two as in q8_0/q5_1.",
    ),
    click.option("--kv-budget", type=Size(), help="Most memory of the cache, as 1GiB."),
)
"""What a command says of the cache's types."""

threads_option = click.option(
    "--threads",
    "n_threads",
    type=Threads(),
    help="Threads while decoding; auto is as many as are quickest at the moment.",
)
answer_options = joined(
    click.option(
        "--json-schema",
        metavar="FILE",
        help="The reply is JSON that satisfies this schema, whoever drafts.",
    ),
    click.option(
        "--grammar",
        metavar="FILE",
        help="The reply satisfies this grammar, written in GBNF or Lark.",
    ),
    click.option(
        "--stop-token",
        "stop_tokens",
        type=Count(0),
        multiple=True,
        help="End the reply at this token; may be repeated.",
    ),
    click.option(
        "--thinking",
        type=click.Choice(get_args(Thinking)),
        help="Whether a reasoning model thinks: as its template has it, or off.",
    ),
    click.option(
        "--thinking-budget",
        type=Count(0),
        metavar="TOKENS",
        help="Close the thinking after so many tokens; 0 does not.",
    ),
)
"""What a reply may be and where it ends."""


def with_answer(sampling: SamplingSettings, given: dict[str, object]) -> SamplingSettings:
    """The settings with what `answer_options` say, which they take out of `given`.

    Raises:
        UsageError: both a schema and a grammar were typed.
        GrammarError: the file cannot be read, or is not valid.
    """
    schema, grammar = given.pop("json_schema", None), given.pop("grammar", None)
    stop_tokens = given.pop("stop_tokens", ())
    if schema and grammar:
        raise click.UsageError("give --json-schema or --grammar, not both")
    if schema or grammar:
        typed = replace(sampling, json_schema=str(schema or ""), grammar=str(grammar or ""))
        sampling = typed.with_absolute_paths()
    if isinstance(stop_tokens, tuple) and stop_tokens:
        sampling = replace(sampling, stop_tokens=stop_tokens)
    if sampling.json_schema or sampling.grammar:
        from engine.grammar.source import grammar_of

        grammar_of(sampling)  # what is wrong is said before a model is loaded
    return sampling


def token_ids(spelled: str) -> tuple[int, ...]:
    """Token ids as they were typed, or those in the file of that name; `-` is standard input.

    Raises:
        UsageError: the file cannot be read, or something in it is no token id.
    """
    text = spelled
    if _IDS.fullmatch(spelled) is None:
        from engine.files import RECORDS_BYTES, read_text

        try:
            is_input = spelled == "-"
            text = sys.stdin.read() if is_input else read_text(Path(spelled), limit=RECORDS_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"no token ids in {spelled}: {error}") from error
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    wrong = next((n for n, word in enumerate(words) if not word.isdecimal()), None)
    if wrong is not None:
        raise click.UsageError(
            f"token ids are whole numbers from 0, and number {wrong + 1} is {shown(words[wrong])}: "
            "write them as 1,2,3"
        )
    if not words:
        raise click.UsageError("there are no token ids: write them as 1,2,3, or name their file")
    return tuple(map(int, words))


class DecodePlan(click.ParamType[str]):
    """How attention goes through a text: `auto`, queries at once, or these and a window."""

    name = "PLAN"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text that was typed, if it is a plan."""
        text = str(value).strip().lower()
        if re.fullmatch(DECODE_PLAN, text) is None:
            self.fail(
                f"{shown(text)} is no decode plan: write auto, 128 for queries at once, or 128/512 "
                "for these and a window",
                param,
                ctx,
            )
        return text


backend_choice = click.option(
    "--backend",
    type=click.Choice(get_args(BackendName)),
    help="The engine that computes: llama.cpp, or torch, whose keys and values can be looked at.",
)

kind_option = click.option(
    "--kv-cache",
    metavar="KIND",
    help="Kind of the torch backend's cache: q4_0, nf4, kivi4, rotated_q3, paged and so on, or "
    "K/V apart as in kivi4/f16; an unknown one lists them.",
)

backend_options = joined(
    backend_choice,
    kind_option,
    click.option(
        "--kv-trace",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Append each operation of the torch backend's caches to this file, a line of JSON "
        "each: layer, shape, bytes, time.",
    ),
    click.option(
        "--decode-plan",
        type=DecodePlan(),
        help="Changes what the torch backend says: as 128/512, attention takes 128 queries at "
        "once, and each sees the last 512 tokens only; auto goes by the length of the text.",
    ),
)
"""Who computes, and how torch keeps keys and values."""

server_option = click.option(
    "--server",
    type=ServerAddress(),
    help="A server that makes the replies (llama-server, vLLM, SGLang, Ollama, OpenAI's protocol); "
    "its key is in KVCHAT_SERVER_KEY.",
)

opening_options = joined(
    kv_options,
    backend_options,
    click.option(
        "--draft",
        metavar="MODEL",
        help="A small model with the same vocabulary, which drafts.",
    ),
    click.option(
        "--preset",
        metavar="NAME",
        help="Name of a preset, or the path of its file.",
        shell_complete=completion.presets,
    ),
    click.option("--ctx", "n_ctx", type=Count(), help="Tokens of context, such as 32k."),
    threads_option,
    opens_model,
)
"""How a model is opened, where its path or name is an argument or option of its own."""
