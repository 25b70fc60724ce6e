"""The machine to plan for: what was found, sizes that were typed, or cards by name."""

from dataclasses import replace

from app.planning.knob import Facts
from app.planning.plan import Setup
from app.planning.values import (
    GPU_SIZES,
    MAX_GPUS,
    RAM_SIZES,
    KnobError,
    counted,
    parse_sizes,
    split_list,
    step_among,
)
from engine.errors import HardwareError
from engine.memory.cards import find_card
from engine.memory.units import GIB, format_bytes, parse_bytes

FOUND = "found"


def shown_devices(setup: Setup) -> str:
    """Write the GPUs as they can be typed: `found`, `8 GiB`, `2x24 GiB`, `GeForce RTX 4090`."""
    counts: dict[str, int] = {}
    for name in (*map(_size, setup.vram_bytes), *setup.cards):
        counts[name] = counts.get(name, 0) + 1
    parts = [name if count == 1 else f"{count}x{name}" for name, count in counts.items()]
    return " + ".join(parts) or FOUND


def turned_devices(setup: Setup, facts: Facts, step: int) -> Setup:
    """Take the next common size for one GPU, from a card that of its memory; then those found."""
    now = setup.vram_bytes[0] if setup.vram_bytes else 0
    if setup.cards:
        now = facts.gpus[0].total_bytes
    if len(setup.vram_bytes) + len(setup.cards) > 1:
        return with_gpus(setup, ())
    stop = step_among((0, *GPU_SIZES), now, step)
    return with_gpus(setup, (stop,) if stop else ())


def parse_devices(setup: Setup, text: str) -> Setup:
    """Read sizes and names of cards, such as `8GiB`, `2x24`, `RTX 3060 + 12GiB`.

    Raises:
        KnobError: one of them is neither, or they make no machine.
    """
    if text.strip().lower() in ("", FOUND):
        return with_gpus(setup, ())
    sizes: list[int] = []
    cards: list[str] = []
    for part in split_list(text):
        count, name = counted(part)
        if not name:
            raise KnobError(f"{text.strip()!r} has a gap: write a size or a card there")
        if _is_size(name):
            sizes += parse_sizes(part)
        else:
            cards += [_card_name(name)] * count
    if len(sizes) + len(cards) > MAX_GPUS:
        raise KnobError(f"more than the {MAX_GPUS} GPUs that llama.cpp takes were typed")
    return with_gpus(setup, tuple(sizes), tuple(cards))


def with_gpus(setup: Setup, vram_bytes: tuple[int, ...], cards: tuple[str, ...] = ()) -> Setup:
    """Plan for other GPUs; a split or a main GPU that no longer suits their number goes.

    Raises:
        KnobError: a machine with one memory has other parts.
    """
    n_gpus = len(vram_bytes) + len(cards)
    ram_bytes = setup.ram_bytes
    if any(map(is_machine, cards)):
        if n_gpus > 1:
            raise KnobError(f"{cards[0]} is a whole machine with one memory: name nothing else")
        ram_bytes = None
    now = setup.configuration
    if n_gpus and len(now.tensor_split) != n_gpus:
        now = replace(now, tensor_split=())
    if n_gpus and now.main_gpu >= n_gpus:
        now = replace(now, main_gpu=0)
    return replace(
        setup, configuration=now, vram_bytes=vram_bytes, cards=cards, ram_bytes=ram_bytes
    )


def is_machine(card: str) -> bool:
    """Whether a card of the table is a machine whose GPU shares the main memory."""
    return find_card(card).is_unified


# --- main memory ---


def shown_ram(setup: Setup) -> str:
    """Write the main memory as it can be typed."""
    return FOUND if setup.ram_bytes is None else _size(setup.ram_bytes)


def turned_ram(setup: Setup, facts: Facts, step: int) -> Setup:
    """Take the next common size; below the least is what was found."""
    del facts
    stop = step_among((0, *RAM_SIZES), setup.ram_bytes or 0, step)
    return replace(setup, ram_bytes=stop or None)


def parse_ram(setup: Setup, text: str) -> Setup:
    """Read a size.

    Raises:
        KnobError: it is none.
    """
    if text.strip().lower() == FOUND:
        return replace(setup, ram_bytes=None)
    found = parse_sizes(text)
    if len(found) != 1:
        raise KnobError(f"{text!r} is no size: write 32GiB, or found")
    return replace(setup, ram_bytes=found[0])


def one_memory(setup: Setup, facts: Facts) -> str:
    """Say that the machine has no main memory of its own."""
    del facts
    name = next(filter(is_machine, setup.cards), None)
    return "" if name is None else f"{name} has one memory"


def _card_name(text: str) -> str:
    try:
        return find_card(text).name
    except HardwareError as error:
        raise KnobError(str(error)) from error


def _is_size(text: str) -> bool:
    """Whether a text is meant as a size: `24`, `24GiB`, and not `4090`."""
    if text.replace(".", "", 1).isdigit():
        return float(text) <= 1024
    try:
        parse_bytes(text)
    except HardwareError:
        return not any(map(str.isalpha, text)) or text.lstrip("-+ ")[:1] == "0"
    return True


def _size(nbytes: int) -> str:
    return f"{nbytes // GIB} GiB" if nbytes % GIB == 0 else format_bytes(nbytes)
