"""Two plans as lines: what was set otherwise, two bars a device, and a row for every part."""

from app.planning.comparison import ComparedDevice, ComparedTerm, Comparison
from app.render import format as fmt
from app.render.gauges import GraphSymbols
from app.render.lines import EMPTY, Line, Run, clipped
from app.render.plan_bar import memory_bar
from app.render.plan_effects import delta_text, gain_text
from app.render.plan_marks import mark, part_name
from app.render.plan_terms import VERDICT_SIGNS
from app.render.sanitize import visible

NAME_WIDTH = 11
COLUMN = 10
"""Cells of a size; at 42 cells all four columns have room."""


def comparison_lines(comparison: Comparison, width: int, symbols: GraphSymbols) -> list[Line]:
    """The pinned plan A beside plan B."""
    lines: list[Line] = [_row("", "A", "B", "change", "muted")]
    lines += [_verdicts(comparison), _contexts(comparison)]
    lines += [EMPTY, *_differences(comparison, width)]
    for device in comparison.devices:
        if device.terms:
            lines += [EMPTY, *_device(device, width, symbols)]
    return [clipped(line, width) for line in lines]


def _row(name: str, a: str, b: str, change: str, style: str = "") -> Line:
    return (
        Run(f"{name:<{NAME_WIDTH}}{a:>{COLUMN}}{b:>{COLUMN}}", style),
        Run(f"{change:>{COLUMN + 1}}", style),
    )


def _verdicts(comparison: Comparison) -> Line:
    a, b = comparison.verdicts
    words = (f"{VERDICT_SIGNS[v].text} {v}" for v in (a, b))
    cells = [
        Run(f"{text:>{COLUMN}}", VERDICT_SIGNS[verdict].style)
        for text, verdict in zip(words, (a, b), strict=True)
    ]
    return (Run(f"{'verdict':<{NAME_WIDTH}}"), *cells)


def _contexts(comparison: Comparison) -> Line:
    a, b = comparison.max_n_ctx
    change = gain_text((b or 0) - (a or 0)) or "="
    before, after = ("none" if n is None else fmt.count(n) for n in (a, b))
    return _row("largest ctx", before, after, change)


def _differences(comparison: Comparison, width: int) -> list[Line]:
    if not comparison.differences:
        return [(Run("The plans are the same: turn the knobs.", "muted"),)]
    return [
        clipped(
            (
                Run(f"{difference.label:<{NAME_WIDTH + 2}} ", "muted"),
                Run(visible(difference.a)),
                Run(" → ", "accent"),
                Run(visible(difference.b), "strong"),
            ),
            width,
        )
        for difference in comparison.differences
    ]


def _device(device: ComparedDevice, width: int, symbols: GraphSymbols) -> list[Line]:
    lines: list[Line] = [(Run(visible(device.name), "heading-minor"),)]
    for name, found in (("A", device.a), ("B", device.b)):
        if found is not None and found.total_bytes:
            lines.append((Run(f"{name} ", "strong"), *memory_bar(found, width - 2, symbols)))
    lines += [_term(term, symbols) for term in device.terms]
    return [*lines, _term(device.total, symbols)]


def _term(term: ComparedTerm, symbols: GraphSymbols) -> Line:
    if term.kind is None:
        head: Line = (Run(f"{'total':<{NAME_WIDTH}}", "strong"),)
    else:
        name = part_name(term.kind)
        head = (mark(term.kind, symbols), Run(f" {name:<{NAME_WIDTH - 2}}"))
    delta = term.delta_bytes
    style = "good" if delta < 0 else "warn" if delta > 0 else "muted"
    change = "=" if delta == 0 else delta_text(delta)
    return (
        *head,
        Run(f"{fmt.nbytes(term.a_bytes):>{COLUMN}}"),
        Run(f"{fmt.nbytes(term.b_bytes):>{COLUMN}}", "strong"),
        Run(f"{change:>{COLUMN + 1}}", style),
    )
