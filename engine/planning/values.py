"""Values as they are typed, and the steps of a number; every parser raises `OptionError`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from engine.errors import EngineError, HardwareError, shown
from engine.files import expanded, open_file, reason_of
from engine.memory.units import GIB, MIB, parse_bytes

T = TypeVar("T")
AUTO: Literal["auto"] = "auto"
AskedThreads = int | Literal["auto"] | None
"""Requested threads: a number, `auto` for the fastest, or None if not given."""
MAX_THREADS = 1024
CONTEXTS = (
    256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304,
    131072, 196608, 262144, 393216, 524288, 786432, 1048576,
)  # fmt: skip
BATCHES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
GPU_SIZES = tuple(gib * GIB for gib in (2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141))
RAM_SIZES = tuple(gib * GIB for gib in (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512))
MARGINS = tuple(mib * MIB for mib in (0, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096))
FOUND, NONE = "found", "none"
_SHARE = re.compile(r"\d{1,6}(\.\d{1,6})?")
_COUNT = re.compile(r"(-?\d[\d,_ ]*(?:\.\d+)?)\s*([kKmM]?)")


class OptionError(EngineError):
    """A value that is not valid; the message names the valid ones."""

    title = "Invalid value"


def step_among(stops: Iterable[int], value: int, step: int) -> int:
    """The next stop above or below a value; the value itself at an end."""
    ordered = sorted(set(stops))
    beyond = [n for n in ordered if n > value] if step > 0 else [n for n in ordered if n < value]
    if not beyond:
        return value
    return beyond[0] if step > 0 else beyond[-1]


def step_round(values: Sequence[T], value: T, step: int) -> T:
    """The next of a closed set, the first after the last."""
    return values[(values.index(value) + step) % len(values)]


def thread_rules(asked: AskedThreads) -> dict[str, int | None]:
    """The value of `--threads`, as the preset key has it."""
    return {} if asked is None else {"n_threads": None if asked == AUTO else asked}


def parse_count(text: str, *, low: int, high: int) -> int:
    """A whole number such as `8192`, `8,192` or `8k` (8 x 1024)."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        spelling = ", or 8k" if low <= 8192 <= high else ""
        raise OptionError(
            f"{shown(text)} is not a number: write a number from {low:,} to {high:,}{spelling}"
        )
    factor = {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]
    value = float(re.sub(r"[,_ ]", "", match[1])) * factor
    if not low <= value <= high or value != int(value):
        raise OptionError(f"{text.strip()[:40]} is not a whole number from {low:,} to {high:,}")
    return int(value)


def parse_threads(text: str) -> int | Literal["auto"]:
    """A number of threads, or `auto`."""
    return _count_or(text, AUTO, AUTO, low=1, high=MAX_THREADS)


def parse_layers(text: str) -> int:
    """A number of layers, -1 for `all`."""
    return _count_or(text, "all", -1, low=0, high=9999)


def _count_or(text: str, word: str, value: T, *, low: int, high: int) -> int | T:
    if text.strip().lower() == word:
        return value
    try:
        return parse_count(text, low=low, high=high)
    except OptionError as error:
        raise OptionError(f"{error}, or {word}") from error


def parse_shares(text: str) -> tuple[float, ...]:
    """Shares such as `3:1` or `60,40`; `auto` is none."""
    if text.strip().lower() in ("", "auto"):
        return ()
    parts = [part.strip() for part in re.split(r"[:,/;]", text)]
    is_list = all(_SHARE.fullmatch(part) for part in parts)
    shares = tuple(map(float, parts)) if is_list else ()
    if len(shares) < 2 or not sum(shares):
        fault = "has too few shares" if is_list else "is not a list of shares"
        raise OptionError(f"{shown(text)} {fault}: write one share per GPU, such as 3:1, or auto")
    return shares


def parse_size(text: str, hint: str) -> int:
    """A size in bytes, such as `8GiB`; `hint` ends the message of an error."""
    try:
        return parse_bytes(text)
    except HardwareError as error:
        raise OptionError(f"{error}; {hint}") from error


def parse_file(text: str) -> Path:
    """The path of a GGUF file that exists."""
    path = expanded(text.strip())
    try:
        with open_file(path) as file:
            start = file.read(4)
    except (OSError, ValueError) as error:
        raise OptionError(f"{text.strip()} cannot be read: {reason_of(error)}") from error
    if start != b"GGUF":
        raise OptionError(f"{path.name} is not a GGUF file: choose another file, or type its path")
    return path
