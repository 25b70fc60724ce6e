"""Values as they are typed and shown, and the steps of a number."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from engine.errors import EngineError, HardwareError, shown
from engine.files import open_file
from engine.memory.cards import find_card
from engine.memory.units import GIB, MIB, format_bytes, parse_bytes
from engine.planning.planner import Facts, Setup

T = TypeVar("T")
CONTEXTS = (
    256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304,
    131072, 196608, 262144, 393216, 524288, 786432, 1048576,
)  # fmt: skip
BATCHES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
GPU_SIZES = tuple(gib * GIB for gib in (2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141))
RAM_SIZES = tuple(gib * GIB for gib in (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512))
MARGINS = tuple(mib * MIB for mib in (0, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096))
MAX_GPUS = 16
"""`GGML_CUDA_MAX_DEVICES` of llama.cpp 0c1e57098."""
_SHARE = re.compile(r"\d{1,6}(\.\d{1,6})?")
_COUNT = re.compile(r"(\d[\d,_ ]*(?:\.\d+)?)\s*([kKmM]?)")


class KnobError(EngineError):
    """A value that a knob cannot take; the message says which it can."""

    title = "That is no value for this"


def parse_count(text: str, *, low: int, high: int) -> int:
    """Read a whole number such as `8192`, `8,192` or `8k` (8 x 1024).

    Raises:
        KnobError: it is none, or out of range.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        spelling = ", or 8k" if low <= 8192 <= high else ""
        raise KnobError(f"{shown(text)} is no number: {low:,} to {high:,}{spelling}")
    factor = {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]
    value = float(re.sub(r"[,_ ]", "", match[1])) * factor
    if not low <= value <= high or value != int(value):
        raise KnobError(f"{text.strip()[:40]} is not one of the whole numbers {low:,} to {high:,}")
    return int(value)


def parse_layers(text: str) -> int:
    """Read a number of layers, -1 for `all`.

    Raises:
        KnobError: it is none.
    """
    if text.strip().lower() == "all":
        return -1
    try:
        return parse_count(text, low=0, high=9999)
    except KnobError as error:
        raise KnobError(f"{error}, or all") from error


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read the sizes of GPUs such as `8GiB, 24` or `2x24GiB`; `found` is none.

    Raises:
        KnobError: one of them is no size, or there are too many.
    """
    if text.strip().lower() in ("", "found"):
        return ()
    sizes: list[int] = []
    for part in split_list(text):
        count, size = counted(part)
        try:
            sizes += [parse_bytes(size)] * count
        except HardwareError as error:
            raise KnobError(f"{error}; several with commas, or found") from error
    if len(sizes) > MAX_GPUS:
        raise KnobError(f"{len(sizes)} GPUs are more than the {MAX_GPUS} that llama.cpp takes")
    return tuple(sizes)


def split_list(text: str) -> list[str]:
    """Cut what is joined by commas, semicolons, plus signs or `and`."""
    return [part.strip() for part in re.split(r"[;,+]|\sand\s", text)]


def counted(text: str) -> tuple[int, str]:
    """Read `2x24GiB` as two of `24GiB`; what has no count is there once."""
    match = re.fullmatch(r"(\d{1,3})\s*[x×]\s*(\S.*)", text.strip())  # noqa: RUF001  as people type it
    return (int(match[1]), match[2]) if match else (1, text)


def parse_shares(text: str) -> tuple[float, ...]:
    """Read shares such as `3:1` or `60,40`; `auto` is none.

    Raises:
        KnobError: one of them is no number, or none is above zero.
    """
    if text.strip().lower() in ("", "auto"):
        return ()
    parts = [part.strip() for part in re.split(r"[:,/;]", text)]
    if not all(_SHARE.fullmatch(part) for part in parts):
        raise KnobError(f"{shown(text)} are no shares: write one for each GPU as 3:1, or auto")
    shares = tuple(float(part) for part in parts)
    if len(shares) < 2 or not sum(shares):
        raise KnobError(
            f"{shown(text)} shares nothing: write one number for each GPU as 3:1, or auto"
        )
    return shares


def parse_file(text: str) -> Path:
    """Read the path of a GGUF file that is there.

    Raises:
        KnobError: there is no such file, or it is no GGUF file.
    """
    path = Path(text.strip()).expanduser()
    try:
        with open_file(path) as file:
            start = file.read(4)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KnobError(f"{text.strip()} cannot be read: {reason}") from error
    if start != b"GGUF":
        raise KnobError(f"{path.name} is no GGUF file: choose one that is, or type its path")
    return path


def step_among(stops: Iterable[int], value: int, step: int) -> int:
    """Give the next stop above or below a value; the value itself at an end."""
    ordered = sorted(set(stops))
    beyond = [n for n in ordered if n > value] if step > 0 else [n for n in ordered if n < value]
    if not beyond:
        return value
    return beyond[0] if step > 0 else beyond[-1]


def step_round(values: Sequence[T], value: T, step: int) -> T:
    """Give the next of a closed set, from the last to the first."""
    return values[(values.index(value) + step) % len(values)]


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
