"""Knobs of the program and of the machine that it runs on."""

from dataclasses import replace

from app import format as fmt
from app.planning.devices import (
    one_memory,
    parse_devices,
    parse_ram,
    shown_devices,
    shown_ram,
    turned_devices,
    turned_ram,
)
from app.planning.knob import Facts, Knob, choice, with_configuration
from app.planning.plan import Setup
from app.planning.values import MARGINS, KnobError, parse_count, step_among
from engine.errors import HardwareError
from engine.memory.terms import TARGETS
from engine.memory.units import format_bytes, parse_bytes

MAX_SLOTS = 256


def _put_slots(setup: Setup, n_slots: int) -> Setup:
    return with_configuration(setup, replace(setup.configuration, n_slots=n_slots))


def _shares_nothing(setup: Setup, facts: Facts) -> str:
    del facts
    return "one slot shares with nobody" if setup.configuration.n_slots == 1 else ""


def _read_margin(setup: Setup, text: str) -> Setup:
    if text.strip().rstrip("BbGgMmKki ") == "0":
        return replace(setup, margin_bytes=0)
    try:
        return replace(setup, margin_bytes=parse_bytes(text))
    except HardwareError as error:
        raise KnobError(f"{error}; 0 keeps nothing free") from error


MACHINE_KNOBS: tuple[Knob, ...] = (
    choice(
        "target", "program", "What is to run it: programs differ in slots and rows of logits.",
        TARGETS,
        lambda setup: setup.target,
        lambda setup, target: replace(setup, target=target),
    ),
    Knob(
        "n_slots", "slots",
        "Chats that kvchat holds, or requests that llama-server answers, side by side.",
        lambda setup: fmt.count(setup.configuration.n_slots),
        lambda setup, _, step: _put_slots(
            setup, min(max(setup.configuration.n_slots + step, 1), MAX_SLOTS)
        ),
        lambda setup, text: _put_slots(setup, parse_count(text, low=1, high=MAX_SLOTS)),
    ),
    choice(
        "kv_unified", "unified",
        "Whether the slots share their cells: a common start is held once, and neighbours change "
        "each other's rounding.",
        ("no", "yes"),
        lambda setup: "yes" if setup.configuration.kv_unified else "no",
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, kv_unified=value == "yes")
        ),
        idle=_shares_nothing,
    ),
    Knob(
        "vram", "GPUs", "Those found, or others to plan for: type 8GiB, 2x24GiB or a card's name; "
        "d lists cards.",
        shown_devices, turned_devices, parse_devices, chooser="device",
    ),
    Knob(
        "ram", "main memory", "What is free here, or a size to plan for. Type 32GiB or found.",
        shown_ram, turned_ram, parse_ram, one_memory,
    ),
    Knob(
        "margin", "keep free", "Memory that stays free on every device. Type 512MiB or 0.",
        lambda setup: format_bytes(setup.margin_bytes),
        lambda setup, _, step: replace(
            setup, margin_bytes=step_among(MARGINS, setup.margin_bytes, step)
        ),
        _read_margin,
    ),
)  # fmt: skip
