"""Rendered lines, as the screens show them, on standard output."""

import sys
from collections.abc import Iterable

from app.config import load_settings
from app.console import print_line
from app.render.charts import GraphSymbols
from app.render.lines import Line

ASCII = str.maketrans("✓✗·–…−±›≤", "+x--.-+><")  # noqa: RUF001  the symbols of a plan
"""Characters for symbols that a terminal without Unicode lacks."""


def print_lines(lines: Iterable[Line]) -> None:
    """Print rendered lines with the terminal's colours, without spaces at their ends."""
    is_ascii = output_symbols() == "ascii"
    for line in lines:
        runs = [(_ascii(run.text) if is_ascii else run.text, run.style) for run in line]
        if runs:  # styles would keep the spaces
            runs[-1] = (runs[-1][0].rstrip(), runs[-1][1])
        print_line(*runs)


def output_symbols() -> GraphSymbols:
    """ASCII if the settings ask for it or the encoding of standard output has no blocks."""
    try:
        "█▓▒▚░·✓✗".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ascii"
    return "ascii" if load_settings().settings.ui.graph_symbols == "ascii" else "block"


def _ascii(text: str) -> str:
    encoding = sys.stdout.encoding or "ascii"
    return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
