"""The state of an import: what was given, the preset that grows, and what is left over."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, get_args

from engine.configuration import KVTypeName
from engine.presets.importing.given import Given
from engine.presets.preset import MOST

ALL_LAYERS = 999

_WHOLE = re.compile(r"[+-]?[0-9]{1,10}")

Data = dict[str, object]
Number = TypeVar("Number", int, float)


@dataclass(slots=True)
class Reading:
    """The preset that grows out of what was given."""

    given: Given
    data: Data = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self, key: str) -> str | None:
        """Give what was written for a key."""
        return self.given.values.get(key)

    def count(self, key: str) -> int | None:
        """Give a whole number; what is none is listed."""
        return self._read(key, whole)

    def share(self, key: str) -> float | None:
        """Give a number; what is none is listed."""
        return self._read(key, finite)

    def _read(self, key: str, read: Callable[[str], Number | None]) -> Number | None:
        written = self.text(key)
        if written is None:
            return None
        number = read(written)
        if number is None:
            self.left_out.append(f"{key} {written} (not a number)")
        return number


def whole(written: str) -> int | None:
    """A whole number that a preset may have; None where it is none."""
    number = int(written) if _WHOLE.fullmatch(written.strip()) else None
    return number if number is not None and abs(number) <= MOST else None


def finite(written: str) -> float | None:
    """A number that a preset may have; None where it is none."""
    try:
        number = float(written)
    except ValueError:
        return None
    return number if abs(number) <= MOST else None


def kv_type(written: str | None, what: str, left_out: list[str]) -> str:
    """Give a KV type; one that kvchat does not know is listed, and f16 taken."""
    known = get_args(KVTypeName)
    if written is None or written.lower() in known:
        return "f16" if written is None else written.lower()
    left_out.append(f"{what} {written} (kvchat knows {', '.join(known)}; f16 is taken)")
    return "f16"


def layers(reading: Reading, key: str, default: str) -> int | str:
    """Give a number of layers, `all`, or the default where it is open."""
    written = (reading.text(key) or default).lower()
    if written in ("auto", "all"):
        return default if written == "auto" else written
    count = reading.count(key)
    if count is None or count == -1:
        return default
    return "all" if count < 0 or count >= ALL_LAYERS else count
