"""JSON and TOML that others may have written, read within bounds.

What comes out can be computed with, walked through and written again: its numbers are finite and
take 64 bits, its texts are whole characters, and it is nested no deeper than `MAX_DEPTH`.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator

MAX_DEPTH = 64
"""Levels of lists and tables: what anything here reads has fewer than ten."""
MAX_JSON = 1 << 23
"""Characters of one JSON text: Python takes up to 27 bytes for each."""
MAX_KEY_PARTS = 32
"""Parts of a dotted key: Python's reader takes the square of their number."""
MOST = 2**64

_STRING = re.compile(
    r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*(?:"""|\\?\Z)'
    r"|'''[^']*+(?:'(?!'')[^']*+)*(?:'''|\Z)"
    r'|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
"""Strings and comments of TOML, whose dots separate no key; an unclosed one reaches to the end.

No alternative can fail after its opening, so nothing is tried twice. Groups with alternatives are
not possessive: those match wrongly before Python 3.11.5 (python/cpython#106052).
"""
_BETWEEN_KEYS = re.compile(r"[\n=\[\]{},]")


def parse_json(text: str | bytes) -> object:
    """The value of a JSON text.

    Raises:
        ValueError: it is no JSON, or goes beyond the bounds.
    """
    if len(text) > MAX_JSON:
        raise ValueError(f"it has more than {MAX_JSON:,} characters")
    try:
        value: object = json.loads(text)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _told(error) from error
    _check(value)
    return value


def parse_toml(text: str) -> dict[str, object]:
    """The tables of a TOML text.

    Raises:
        ValueError: it is no TOML, or goes beyond the bounds.
    """
    keys = _BETWEEN_KEYS.split(_STRING.sub("", text))
    if any(key.count(".") >= MAX_KEY_PARTS for key in keys):
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts")
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _told(error) from error
    _check(tables)
    return tables


def check_text(text: str) -> None:
    """Make sure that a text can be written as UTF-8.

    Raises:
        ValueError: it has half of a surrogate pair, which an escape can spell.
    """
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[error.start]!r} is not a complete character") from error


def _check(value: object) -> None:
    level: list[list[object]] = [[value]]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
    raise _too_deep()


def _inner(values: Iterable[object]) -> Iterator[list[object]]:
    """The parts of those values that have any; numbers and texts are checked."""
    for value in values:
        if isinstance(value, str):
            check_text(value)
        elif isinstance(value, int):
            if not -MOST < value < MOST:
                raise _too_large()
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
        elif isinstance(value, dict):
            yield [*value, *value.values()]
        elif isinstance(value, list):
            yield value


def _told(error: ValueError) -> ValueError:
    """The error of a reader; one of its own is only raised for numbers of too many digits."""
    is_told = isinstance(error, json.JSONDecodeError | tomllib.TOMLDecodeError | UnicodeError)
    return ValueError(str(error)) if is_told else _too_large()


def _too_large() -> ValueError:
    return ValueError("a number exceeds 64 bits")


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
