"""One knob of the planner, and the kinds of them: a closed set, a number, layers, files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from engine.configuration import Configuration, bounds_of
from engine.memory.estimate import with_n_ctx
from engine.memory.kv_cache import KV_TYPES, is_quantized
from engine.planning.planner import Facts, Setup
from engine.planning.values import (
    NONE,
    KnobError,
    format_layers,
    parse_count,
    parse_file,
    parse_layers,
    step_among,
    step_round,
)

Chooser = Literal["draft", "projector", "adapter", "device"]
Idle = tuple[Callable[[Setup, Facts], bool], str]
"""When a knob changes nothing, and why."""
Stops = Callable[[Setup, Facts], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to choose."""

    name: str
    label: str
    help: str
    format: Callable[[Setup], str]
    step: Callable[[Setup, Facts, int], Setup]
    """The setup one step on or back; the same one at an end."""
    parse: Callable[[Setup, str], Setup] | None = None
    """The setup with a typed value, raises `KnobError`; None where values are chosen only."""
    idle: tuple[Idle, ...] = ()
    chooser: Chooser | None = None
    """What is chosen from a list when the knob is stepped on."""

    def disabled_reason(self, setup: Setup, facts: Facts) -> str:
        """Why it changes nothing in this setup; empty where it counts."""
        return next((text for is_idle, text in self.idle if is_idle(setup, facts)), "")


def value_of(setup: Setup, name: str) -> object:
    """A field of a setup or of its configuration."""
    return getattr(setup if hasattr(setup, name) else setup.configuration, name)


def with_value(setup: Setup, name: str, value: object) -> Setup:
    """The setup with another value of a field, and with what must follow it.

    A draft model's context follows the context, the micro-batch is at most the batch, and packed
    values need flash attention.

    Raises:
        KnobError: the micro-batch is larger than the batch.
    """
    now = setup.configuration
    is_target = name == "target"
    changed = replace(setup, target=value) if is_target else setup.with_values(**{name: value})  # type: ignore[arg-type]  # of TARGETS
    match name, value:
        case "n_ctx", int():
            return setup.with_configuration(with_n_ctx(now, value))
        case "n_batch", int():
            return changed.with_values(n_ubatch=min(now.n_ubatch, value))
        case "n_ubatch", int() if value > now.n_batch:
            raise KnobError(
                f"{value:,} exceeds the batch size of {now.n_batch:,}: raise the batch size first"
            )
        case "type_v", str() if value in KV_TYPES and now.flash_attention == "off":
            is_packed = is_quantized(changed.configuration.type_v)
            return changed.with_values(flash_attention="auto") if is_packed else changed
        case _:
            return changed


def choice(
    name: str, label: str, text: str, words: Sequence[str] = (), *, idle: tuple[Idle, ...] = ()
) -> Knob:
    """A knob of a closed set, which is stepped round and typed by its words.

    The words are those of the field's type; of a field that is false or true they are given.
    """
    hint = get_type_hints(Setup if name == "target" else Configuration)[name]
    values: Mapping[str, object] = {word: word for word in get_args(hint)}
    if hint is bool:
        values = dict(zip(words, (False, True), strict=True))

    def shown(setup: Setup) -> str:
        return next(word for word, value in values.items() if value == value_of(setup, name))

    def parse(setup: Setup, typed: str) -> Setup:
        for word, value in values.items():
            if word.lower() == typed.strip().lower():
                return with_value(setup, name, value)
        raise KnobError(f"{typed!r} is not one of {', '.join(values)}")

    def step(setup: Setup, _: Facts, by: int) -> Setup:
        return with_value(setup, name, values[step_round(tuple(values), shown(setup), by)])

    return Knob(name, label, text, shown, step, parse, idle)


def number(
    name: str,
    label: str,
    text: str,
    *,
    stops: Stops | None = None,
    bounds: tuple[int, int] | None = None,
    zero: str = "0",
    idle: tuple[Idle, ...] = (),
) -> Knob:
    """A knob of whole numbers within the bounds of its field.

    Args:
        name: The field of the configuration that it sets.
        label: What stands before its value.
        text: What it means.
        stops: Where its steps lead; None is the next whole number.
        bounds: The least and the most, where the field has none.
        zero: How 0 is shown, and may be typed.
        idle: When it changes nothing.
    """
    limits = {} if bounds else bounds_of(Configuration)[name].limits
    low, high = bounds or (int(limits["ge"]), int(limits["le"]))

    def now(setup: Setup) -> int:
        return int(str(value_of(setup, name)))

    def parse(setup: Setup, typed: str) -> Setup:
        is_zero = low == 0 and typed.strip().lower() == zero
        return with_value(setup, name, 0 if is_zero else parse_count(typed, low=low, high=high))

    def step(setup: Setup, facts: Facts, by: int) -> Setup:
        next_one = min(max(now(setup) + by, low), high)
        found = next_one if stops is None else step_among(stops(setup, facts), now(setup), by)
        return with_value(setup, name, found)

    def shown(setup: Setup) -> str:
        return f"{now(setup):,}" if now(setup) else zero

    return Knob(name, label, text, shown, step, parse, idle)


def layers(
    name: str,
    label: str,
    text: str,
    n_all: Callable[[Facts], int],
    *,
    zero: str = "0",
    idle: tuple[Idle, ...] = (),
) -> Knob:
    """A knob of a number of layers, `all` of which is -1."""

    def now(setup: Setup) -> int:
        return int(str(value_of(setup, name)))

    def shown(setup: Setup) -> str:
        return format_layers(now(setup)) if now(setup) else zero

    def parse(setup: Setup, typed: str) -> Setup:
        is_zero = typed.strip().lower() == zero
        return with_value(setup, name, 0 if is_zero else parse_layers(typed))

    def step(setup: Setup, facts: Facts, by: int) -> Setup:
        most = n_all(facts)
        found = (most if now(setup) < 0 else min(now(setup), most)) + by
        return with_value(setup, name, -1 if found >= most else max(found, 0))

    return Knob(name, label, text, shown, step, parse, idle)


def files(
    name: str,
    label: str,
    text: str,
    chooser: Chooser,
    get: Callable[[Setup], tuple[Path, ...]],
    put: Callable[[Setup, Path | None], Setup],
) -> Knob:
    """A knob of files: a step on lists them, a step back takes the last one off."""

    def shown(setup: Setup) -> str:
        paths = get(setup)
        return NONE if not paths else paths[0].stem if len(paths) == 1 else f"{len(paths)} files"

    def parse(setup: Setup, typed: str) -> Setup:
        if typed.strip() == shown(setup):
            return setup
        if typed.strip().lower() != NONE:
            return put(setup, parse_file(typed))
        while get(setup):
            setup = put(setup, None)
        return setup

    def step(setup: Setup, _: Facts, by: int) -> Setup:
        return put(setup, None) if by < 0 else setup

    return Knob(name, label, text, shown, step, parse, chooser=chooser)
