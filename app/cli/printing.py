"""Rendered lines, as the screens show them, on standard output."""

import sys
from collections.abc import Iterable

from app.console import print_line
from app.render.charts import GraphSymbols
from app.render.lines import Line

ASCII = str.maketrans("✓✗·–…−±›≤", "+x--.-+><")  # noqa: RUF001  the symbols of a plan
"""Characters for symbols that a terminal without Unicode lacks."""


def print_lines(lines: Iterable[Line]) -> None:
    """Print rendered lines with the terminal's colours, without spaces at their ends."""
    is_plain = symbols_for(sys.stdout.encoding) == "ascii"
    for line in lines:
        runs = [(_ascii(run.text) if is_plain else run.text, run.style) for run in line]
        if runs:  # styles would keep the spaces
            runs[-1] = (runs[-1][0].rstrip(), runs[-1][1])
        print_line(*runs)


def symbols_for(encoding: str | None) -> GraphSymbols:
    """The characters for bars that an encoding has."""
    try:
        "█▓▒▚░·✓✗".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ascii"
    return "block"


def _ascii(text: str) -> str:
    return text.translate(ASCII).encode("ascii", "replace").decode("ascii")
