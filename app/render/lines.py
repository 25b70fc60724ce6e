"""Lines of styled text, which renderers return and widgets paint.

A style is a name such as `muted` or `code-keyword`; several are joined by a space. Widgets look the
names up in the theme, commands print the plain text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text in one style."""

    text: str
    style: str = ""


Line = tuple[Run, ...]
EMPTY: Line = ()
LABEL_WIDTH = 7
"""Cells of a label before what it names."""


def plain(runs: Line) -> str:
    """The text of a line."""
    return "".join(run.text for run in runs)


def width_of(runs: Line) -> int:
    """Cells of a line in a terminal."""
    return sum(cell_len(run.text) for run in runs)


def padded(runs: Line, width: int, style: str = "") -> Line:
    """The line filled with spaces up to a width, so that a background reaches the edge."""
    missing = width - width_of(runs)
    return (*runs, Run(" " * missing, style)) if missing > 0 else runs


def clipped(runs: Line, width: int) -> Line:
    """The line cut to a width, with `…` where something was cut."""
    if width_of(runs) <= width:
        return runs
    shown: list[Run] = []
    space = width - 1
    for run in runs:
        cells = cell_len(run.text)
        if cells > space:
            head = chop_cells(run.text, space)[0] if space > 0 else ""
            shown.append(Run((head if cell_len(head) <= space else "") + "…", run.style))
            break
        shown.append(run)
        space -= cells
    return tuple(shown) if width > 0 else EMPTY


def indented(lines: list[Line], n_cells: int) -> list[Line]:
    """The lines moved to the right."""
    return [(Run(" " * n_cells), *runs) for runs in lines]


def hanging(sign: Line, value: Line, width: int) -> list[Line]:
    """A value broken into lines, all of them at the right of a sign or label before the first."""
    indent = width_of(sign)
    first, *others = wrapped(value, max(width - indent, 8))
    return [(*sign, *first), *indented(others, indent)]


def labelled(label: str, *values: str | Run, width: int = LABEL_WIDTH) -> Line:
    """A dimmed label in a column of `width` cells, and its values."""
    runs = (Run(value) if isinstance(value, str) else value for value in values)
    return (Run(f"{label:<{width}}", "muted"), *runs)


def field(label: str, value: Line, width: int, *, indent: int = LABEL_WIDTH) -> list[Line]:
    """A dimmed label, and a value that is wrapped in the column after it."""
    return hanging(labelled(label, width=indent), value, width)


def spread(left: Line, right: Line, width: int) -> Line:
    """Two lines as one, the second at the right edge; the first is clipped if they do not fit."""
    space = width - width_of(right)
    if space < 2:
        return clipped(left, width)
    head = clipped(left, space - 1)
    return (*head, Run(" " * (space - width_of(head))), *right)


def wrapped(runs: Line, width: int) -> list[Line]:
    """The line broken at spaces; a word wider than the line is folded."""
    text = plain(runs)
    if len(text) <= width and text.isascii():
        return [runs]
    return [_without_trailing_space(part) for part in _split(runs, _breaks(text, max(width, 2)))]


def folded(runs: Line, width: int) -> list[Line]:
    """The line cut every `width` cells, with all spaces: for code."""
    text = plain(runs)
    if len(text) <= width and text.isascii():
        return [runs]
    return list(_split(runs, _fold_breaks(text, 0, max(width, 2))[0]))


def _breaks(text: str, width: int) -> list[int]:
    offsets: list[int] = []
    used = 0
    for match in _WORD.finditer(text):
        word = match.group()
        cells = cell_len(word.rstrip())
        if used + cells > width and used:
            offsets.append(match.start())
            used = 0
        if cells > width:
            inner, used = _fold_breaks(word.rstrip(), match.start(), width)
            offsets += inner
            used += cell_len(word) - cells
        else:
            used += cell_len(word)
    return offsets


def _fold_breaks(text: str, start: int, width: int) -> tuple[list[int], int]:
    """Offsets at which a text is cut into full lines, and the cells of the last line."""
    pieces = chop_cells(text, width)
    offsets: list[int] = []
    for piece in pieces[:-1]:
        start += len(piece)
        offsets.append(start)
    return offsets, cell_len(pieces[-1]) if pieces else 0


def _split(runs: Line, offsets: list[int]) -> Iterator[Line]:
    queue = list(reversed(runs))
    position = 0
    for offset in offsets:
        part: list[Run] = []
        while queue and position < offset:
            run = queue.pop()
            space = offset - position
            if len(run.text) > space:
                queue.append(Run(run.text[space:], run.style))
                run = Run(run.text[:space], run.style)
            part.append(run)
            position += len(run.text)
        yield tuple(part)
    yield tuple(reversed(queue))


def _without_trailing_space(runs: Line) -> Line:
    if not runs or not runs[-1].text.endswith(" "):
        return runs
    last = Run(runs[-1].text.rstrip(), runs[-1].style)
    return (*runs[:-1], last) if last.text else _without_trailing_space(runs[:-1])


def frame_top(title: str, width: int, frame: str = "frame") -> Line:
    """The upper edge with a title."""
    return _edge("╭", "╮", title, width, frame, "frame-title")


def frame_bottom(hint: str, width: int, frame: str = "frame") -> Line:
    """The lower edge with a hint, such as that there is more below."""
    return _edge("╰", "╯", hint, width, frame, "frame-hint")


def _edge(left: str, right: str, text: str, width: int, frame: str, style: str) -> Line:
    if width < 2:
        return (Run("─" * max(width, 0), frame),)
    label = clipped((Run(f" {text} ", style),), max(width - 4, 0)) if text else ()
    rest = width - 3 - width_of(label)
    return (Run(f"{left}─", frame), *label, Run("─" * max(rest, 0) + right, frame))
