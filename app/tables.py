"""Tables and HTML pages, which commands print through rich."""

import io
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from app.sanitize import one_line, safe_stream, with_signs
from engine.errors import EngineError
from engine.files import reason_of, replace_file

PADDING = re.compile(" +\n")
PLAIN_WIDTH = 1000
"""Width of tables that are not printed to a terminal; they are never cut."""
PAGE_WIDTH = 140
"""Characters of a line in an HTML page."""
MAX_NAME = 32
"""Characters up to which the names in the first column are neither folded nor cut."""


class HarmlessConsole(Console):
    """A console on which no text can move the cursor; brackets and colons have no meaning."""

    def __init__(self, file: IO[str] | None, width: int | None, *, record: bool = False) -> None:
        super().__init__(
            file=file,
            width=width,
            force_terminal=False if os.environ.get("NO_COLOR") else None,
            highlight=False,
            markup=False,
            emoji=False,
            record=record,
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of something to print, control characters replaced."""
        segments = super().render(renderable, options)
        for segment in segments if self.is_terminal else _without_padding(segments):
            yield segment if segment.control else segment._replace(text=with_signs(segment.text))


def _without_padding(segments: Iterable[Segment]) -> Iterable[Segment]:
    """Lines without the blanks that fill them up to the width of a table."""
    blanks = ""
    for segment in segments:
        text = PADDING.sub("\n", blanks + segment.text)
        shown = text.rstrip(" ")
        blanks = text[len(shown) :]
        yield segment._replace(text=shown)


def console(*, err: bool = False) -> Console:
    """The console of standard output or standard error."""
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return HarmlessConsole(safe_stream(err=err) or stream, width)


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print the parts of a report."""
    screen = console()
    for part in parts:
        screen.print(part)


class PageError(EngineError):
    """An HTML report that cannot be written."""

    title = "The report cannot be written"


def html_page(parts: Iterable[RenderableType]) -> str:
    """Render the output of a command as one HTML file without links or scripts."""
    page = HarmlessConsole(io.StringIO(), PAGE_WIDTH, record=True)
    for part in parts:
        page.print(part)
    return page.export_html(inline_styles=True)


def write_page(path: Path, parts: Iterable[RenderableType]) -> None:
    """Write what a command prints as an HTML file; a link is followed."""
    with _page_errors(path):
        replace_file(path.resolve(), [html_page(parts).encode()], is_durable=False)


def check_page(path: Path | None) -> None:
    """Make sure that an HTML file can be written, before anything is measured."""
    if path is not None:
        with _page_errors(path):
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass


@contextmanager
def _page_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PageError(
            f"{path} cannot be written ({reason_of(error)}): use another file for --html"
        ) from error


def plain_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str | Text]] = (),
    *,
    numbers: Collection[str] = (),
    folds: bool = True,
    header_style: str = "bold",
) -> Table:
    """A table without borders.

    Args:
        titles: Of the columns.
        rows: Their cells; control characters in them are shown as symbols.
        numbers: Titles of the columns that are aligned right.
        folds: Whether long texts take several lines; else they are cut. Numbers are never cut.
        header_style: Of the titles.
    """
    cells = [[Text(one_line(c)) if isinstance(c, str) else c for c in row] for row in rows]
    name_width = max((row[0].cell_len for row in cells), default=0)
    table = Table(box=None, pad_edge=False, header_style=header_style)
    for title in titles:
        is_number = title in numbers
        table.add_column(
            title,
            justify="right" if is_number else "left",
            no_wrap=is_number or (title == titles[0] and name_width <= MAX_NAME),
            overflow="fold" if folds else "ellipsis",
        )
    for row in cells:
        for text in row:
            text.no_wrap = not folds
        table.add_row(*row)
    return table
