"""Rows that the cockpit's panels share: a label, a value, and what belongs to it."""

from app.render.lines import Line, Run

LABEL_WIDTH = 13
"""Cells of the label column."""
VALUE_WIDTH = 9
"""Cells of a right-aligned value."""


def row(label: str, *values: str | Run) -> Line:
    """A dimmed label and its value."""
    return (
        Run(f"{label:<{LABEL_WIDTH}}", "muted"),
        *(Run(value) if isinstance(value, str) else value for value in values),
    )


def columns(label: str, *values: str, first: str = "", rest: str = "") -> Line:
    """A row of right-aligned values; the first of them may have a style of its own."""
    styles = (first, *[rest] * (len(values) - 1))
    cells = [
        Run(f"{value:>{VALUE_WIDTH}}", style) for value, style in zip(values, styles, strict=False)
    ]
    return (Run(f"{label:<{LABEL_WIDTH}}", "muted"), *cells)


def labelled(label: str, values: list[Line]) -> list[Line]:
    """A dimmed label and a value of several lines, which stand below one another."""
    first, *others = values or [()]
    return [row(label, *first), *(row("", *other) for other in others)]
