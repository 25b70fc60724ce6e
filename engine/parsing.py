"""Parse untrusted JSON and TOML within limits; order names by their numbers.

The values are safe to compute with, traverse and write: numbers are finite and fit 64 bits, strings
are valid Unicode, and the depth is at most `MAX_DEPTH`.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

MAX_DEPTH = 64  # maximum nesting of lists and tables: files of kvchat have fewer than ten levels
MAX_JSON = 1 << 23
"""Default limit of a JSON text in characters: Python needs up to 27 bytes per character."""
MAX_KEY_PARTS = 32  # maximum parts of a dotted key: Python's parser needs quadratic time
MAX_INTEGER = 2**64
Text = TypeVar("Text", str, str | bytes)
Value = TypeVar("Value")

_STRING = re.compile(
    r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*(?:"""|\\?\Z)'
    r"|'''[^']*+(?:'(?!'')[^']*+)*(?:'''|\Z)"
    r'|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
"""Strings and comments of TOML, whose dots separate no key parts; unclosed ones match to the end.

No alternative can fail after its opening, so there is no backtracking. Groups with alternatives are
not possessive, because those match wrongly before Python 3.11.5 (python/cpython#106052).
"""
_BETWEEN_KEYS = re.compile(r"[\n=\[\]{},]")


def parse_json(text: str | bytes, *, limit: int = MAX_JSON) -> object:
    """Parse a JSON text; raises `ValueError` if it is not valid or exceeds the limits."""
    if len(text) > limit:
        raise ValueError(f"it has more than {limit:,} characters")
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, object]:
    """Parse a TOML text; raises `ValueError` if it is not valid or exceeds the limits."""
    keys = _BETWEEN_KEYS.split(_STRING.sub("", text))
    if any(key.count(".") >= MAX_KEY_PARTS for key in keys):
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts")
    return _parsed(tomllib.loads, text)


def _parsed(parse: Callable[[Text], Value], text: Text) -> Value:
    try:
        value = parse(text)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeError):
        raise
    except ValueError as error:  # of a number with many digits
        raise ValueError("a number needs more than 64 bits") from error
    level: list[list[object]] = [[value]]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def check_text(text: str) -> None:
    """Raise `ValueError` for a text with a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[error.start]!r} is half of a surrogate pair") from error


def natural_key(name: str) -> list[tuple[float, str]]:
    """Sort key of a name, whose numbers count by their value: 4b comes before 12b."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)|([^0-9]+)", name.lower())
    return [(float(number or "inf"), text) for number, text in parts]


def _inner(values: Iterable[object]) -> Iterator[list[object]]:
    """Yield the contents of lists and tables; check numbers and strings."""
    for value in values:
        if isinstance(value, str):
            check_text(value)
        elif isinstance(value, int):
            if not -MAX_INTEGER < value < MAX_INTEGER:
                raise ValueError("a number needs more than 64 bits")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
        elif isinstance(value, dict):
            yield [*value, *value.values()]
        elif isinstance(value, list):
            yield value
