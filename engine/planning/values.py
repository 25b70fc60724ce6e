"""Values as they are typed and shown, and the steps of a number."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from engine.errors import EngineError, HardwareError, shown
from engine.files import expanded, open_file
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


def parse_threads(text: str) -> int | Literal["auto"]:
    """A number of threads, or `auto`.

    Raises:
        OptionError: it is neither.
    """
    if text.strip().lower() == AUTO:
        return AUTO
    try:
        return parse_count(text, low=1, high=MAX_THREADS)
    except OptionError as error:
        raise OptionError(f"{error}, or auto") from error


def thread_rules(asked: AskedThreads) -> dict[str, int | None]:
    """The value of `--threads`, as the preset key has it."""
    return {} if asked is None else {"n_threads": None if asked == AUTO else asked}


def parse_count(text: str, *, low: int, high: int) -> int:
    """A whole number such as `8192`, `8,192` or `8k` (8 x 1024).

    Raises:
        OptionError: it is none, or out of range.
    """
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


def parse_layers(text: str) -> int:
    """A number of layers, -1 for `all`.

    Raises:
        OptionError: it is none.
    """
    if text.strip().lower() == "all":
        return -1
    try:
        return parse_count(text, low=0, high=9999)
    except OptionError as error:
        raise OptionError(f"{error}, or all") from error


def format_layers(number: int) -> str:
    """A number of layers as it is typed."""
    return "all" if number < 0 else str(number)


def parse_shares(text: str) -> tuple[float, ...]:
    """Shares such as `3:1` or `60,40`; `auto` is none.

    Raises:
        OptionError: one of them is no number, or none is above zero.
    """
    if text.strip().lower() in ("", "auto"):
        return ()
    parts = [part.strip() for part in re.split(r"[:,/;]", text)]
    if not all(_SHARE.fullmatch(part) for part in parts):
        raise OptionError(
            f"{shown(text)} is not a list of shares: write one share per GPU, such as 3:1, or auto"
        )
    shares = tuple(float(part) for part in parts)
    if len(shares) < 2 or not sum(shares):
        raise OptionError(
            f"{shown(text)} has too few shares: write one share per GPU, such as 3:1, or auto"
        )
    return shares


def parse_margin(text: str) -> int:
    """Bytes to keep free, which may be none.

    Raises:
        OptionError: it is no size.
    """
    if text.strip().rstrip("BbGgMmKki ") == "0":
        return 0
    try:
        return parse_bytes(text)
    except HardwareError as error:
        raise OptionError(f"{error}; 0 leaves nothing free") from error


def parse_file(text: str) -> Path:
    """The path of a GGUF file that is there.

    Raises:
        OptionError: there is no such file, or it is no GGUF file.
    """
    path = expanded(text.strip())
    try:
        with open_file(path) as file:
            start = file.read(4)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{text.strip()} cannot be read: {reason}") from error
    if start != b"GGUF":
        raise OptionError(f"{path.name} is not a GGUF file: choose another file, or type its path")
    return path
