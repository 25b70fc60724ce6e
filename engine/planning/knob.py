"""One knob of the planner, and the kinds of them: a closed set, a number, files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.planning.planner import Facts, Setup
from engine.planning.values import NONE, KnobError, parse_count, parse_file, step_among, step_round

Chooser = Literal["draft", "projector", "adapter", "device"]
Format = Callable[[Setup], str]
Step = Callable[[Setup, Facts, int], Setup]
Parse = Callable[[Setup, str], Setup]
Reason = Callable[[Setup, Facts], str]


def always_enabled(setup: Setup, facts: Facts) -> str:
    """No reason: the knob always counts."""
    del setup, facts
    return ""


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to choose."""

    name: str
    label: str
    help: str
    format: Format
    step: Step
    """The setup one step on or back; the same one at an end."""
    parse: Parse | None = None
    """The setup with a typed value, raises `KnobError`; None where values are chosen only."""
    disabled_reason: Reason = always_enabled
    """Why it changes nothing in this setup; empty where it counts."""
    chooser: Chooser | None = None
    """What is chosen from a list when the knob is stepped on."""


def choice(
    name: str,
    label: str,
    text: str,
    values: Mapping[str, object] | Sequence[str],
    *,
    get: Callable[[Setup], object] | None = None,
    put: Callable[[Setup, object], Setup] | None = None,
    disabled_reason: Reason = always_enabled,
) -> Knob:
    """A knob of a closed set, which is stepped round and typed by its words.

    Args:
        name: The field of the configuration that it sets.
        label: What stands before its value.
        text: What it means.
        values: The words, and what each means where that is not the word itself.
        get: What is set, where that is no field.
        put: The setup with another value, where more than the field changes.
        disabled_reason: When it changes nothing.
    """
    by_word = values if isinstance(values, Mapping) else {word: word for word in values}
    words = tuple(by_word)

    def value_of(setup: Setup) -> object:
        return getattr(setup.configuration, name) if get is None else get(setup)

    def with_word(setup: Setup, word: str) -> Setup:
        value = by_word[word]
        return setup.changed(**{name: value}) if put is None else put(setup, value)

    def word_of(setup: Setup) -> str:
        now = value_of(setup)
        return next(word for word, value in by_word.items() if value == now)

    def parse(setup: Setup, typed: str) -> Setup:
        for word in words:
            if word.lower() == typed.strip().lower():
                return with_word(setup, word)
        raise KnobError(f"{typed!r} is none of {', '.join(words)}")

    def step(setup: Setup, _: Facts, by: int) -> Setup:
        return with_word(setup, step_round(words, word_of(setup), by))

    return Knob(name, label, text, word_of, step, parse, disabled_reason)


def number(
    name: str,
    label: str,
    text: str,
    bounds: tuple[int, int],
    *,
    stops: Callable[[Setup, Facts], Sequence[int]] | None = None,
    put: Callable[[Setup, int], Setup] | None = None,
    zero: str = "0",
    disabled_reason: Reason = always_enabled,
) -> Knob:
    """A knob of whole numbers.

    Args:
        name: The field of the configuration that it sets.
        label: What stands before its value.
        text: What it means.
        bounds: The least and the most that may be typed.
        stops: Where its steps lead; None is the next whole number.
        put: The setup with another value, where more than the field changes.
        zero: How 0 is shown, and may be typed.
        disabled_reason: When it changes nothing.
    """
    low, high = bounds

    def value_of(setup: Setup) -> int:
        value: int = getattr(setup.configuration, name)
        return value

    def with_value(setup: Setup, value: int) -> Setup:
        return setup.changed(**{name: value}) if put is None else put(setup, value)

    def parse(setup: Setup, typed: str) -> Setup:
        is_zero = low == 0 and typed.strip().lower() == zero
        return with_value(setup, 0 if is_zero else parse_count(typed, low=low, high=high))

    def step(setup: Setup, facts: Facts, by: int) -> Setup:
        now = value_of(setup)
        if stops is None:
            return with_value(setup, min(max(now + by, low), high))
        return with_value(setup, step_among(stops(setup, facts), now, by))

    return Knob(
        name,
        label,
        text,
        lambda setup: f"{value_of(setup):,}" if value_of(setup) else zero,
        step,
        parse,
        disabled_reason,
    )


def files(
    name: str,
    label: str,
    text: str,
    get: Callable[[Setup], tuple[Path, ...]],
    put: Callable[[Setup, Path | None], Setup],
    chooser: Chooser,
    disabled_reason: Reason = always_enabled,
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

    return Knob(name, label, text, shown, step, parse, disabled_reason, chooser)
