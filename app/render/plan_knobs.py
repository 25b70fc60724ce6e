"""The knobs as rows: label, value, and under them what a step of the chosen one would change."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from app.planning.knob import Facts, Knob
from app.planning.plan import Setup
from app.planning.what_if import Arrows
from app.render.lines import EMPTY, Line, Run, clipped, width_of
from app.render.plan_effects import arrow_lines
from app.render.sanitize import visible

LABEL_WIDTH = 14
CURSOR = "▏"
N_ARROWS = 2
MAX_HELP = 3
LEAST_ROWS = 6
"""Rows that the knobs keep, whatever stands under them."""


@dataclass(frozen=True, slots=True)
class KnobState:
    """Which knob is chosen, what is being typed into it, and the first row in sight."""

    selected: int = 0
    typed: str | None = None
    problem: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class KnobLine:
    """A line and the knob that it belongs to, None under the rows."""

    line: Line
    place: int | None


@dataclass(frozen=True, slots=True)
class KnobSheet:
    """The lines of the panel, where the rows were scrolled to, and how many are out of sight."""

    lines: list[KnobLine]
    first: int
    n_above: int
    n_below: int


def knob_sheet(
    knobs: Sequence[Knob],
    setup: Setup,
    facts: Facts,
    state: KnobState,
    width: int,
    height: int,
    arrows: Arrows | None = None,
) -> KnobSheet:
    """Lay the panel out: rows that scroll, a problem under its row, and at the bottom the help."""
    foot = _foot(knobs[state.selected], setup, facts, arrows, width)
    problem = _problem(state.problem, width) if state.problem else []
    room = max(height - len(foot) - len(problem), min(LEAST_ROWS, height))
    n_rows = min(len(knobs), room)
    first = min(state.first, len(knobs) - n_rows)
    first = min(max(first, state.selected - n_rows + 1), state.selected)
    lines: list[KnobLine] = []
    for place in range(first, first + n_rows):
        row = _row(knobs[place], setup, facts, state, width, is_selected=place == state.selected)
        lines.append(KnobLine(row, place))
        if place == state.selected:
            lines += [KnobLine(part, place) for part in problem]
    gap = max(height - len(lines) - len(foot), 0)
    lines += [KnobLine(line, None) for line in (*[EMPTY] * gap, *foot)]
    return KnobSheet(lines[:height], first, first, len(knobs) - first - n_rows)


def _row(
    knob: Knob, setup: Setup, facts: Facts, state: KnobState, width: int, *, is_selected: bool
) -> Line:
    is_idle = bool(knob.idle(setup, facts))
    room = width - LABEL_WIDTH
    if is_selected and state.typed is not None:
        value: Line = (Run(visible(state.typed)[-(room - 2) :], "strong"), Run(CURSOR, "accent"))
    else:
        style = "muted" if is_idle else "strong"
        value = clipped((Run(visible(knob.shown(setup)), style),), room - 4)
        arrow = "accent" if is_selected else "muted"
        ends = ("◂ ", " ▸") if is_selected and not is_idle else ("  ", "  ")
        value = (Run(ends[0], arrow), *value, Run(ends[1], arrow))
    label = Run(f"{'▸' if is_selected else ' '} {knob.label:<{LABEL_WIDTH - 2}}",
                "accent" if is_selected else "muted" if is_idle else "")  # fmt: skip
    return (label, Run(" " * max(room - width_of(value), 0)), *value)


def _problem(text: str, width: int) -> list[Line]:
    parts = wrap(visible(text), max(width - 4, 10))
    return [(Run(f"  {'✗' if i == 0 else ' '} {part}", "bad"),) for i, part in enumerate(parts)]


def _foot(knob: Knob, setup: Setup, facts: Facts, arrows: Arrows | None, width: int) -> list[Line]:
    """What the chosen knob means, and what a step would change or why it changes nothing."""
    parts = wrap(knob.help, width)[:MAX_HELP]
    help_lines: list[Line] = [(Run(part, "muted"),) for part in parts]
    gap: list[Line] = [EMPTY] * (MAX_HELP - len(help_lines))
    reason = knob.idle(setup, facts)
    if reason:
        parts = wrap(f"\N{EN DASH} idle: {reason}", max(width, 10))[:N_ARROWS]
        below: list[Line] = [(Run(part, "warn"),) for part in parts]
    elif knob.chooser is not None:
        below = [(Run("▸ lists what there is", "muted"),)] if knob.chooser != "device" else []
    else:
        below = arrow_lines(arrows, width)
    return [*gap, *help_lines, *below, *[EMPTY] * (N_ARROWS - len(below))]
