"""The knobs as rows: label, value, and what is wrong with a typed one."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from app.planning.knobs import Knob
from app.planning.plan import Setup
from app.render.lines import EMPTY, Line, Run, clipped, width_of
from app.render.sanitize import visible

LABEL_WIDTH = 14
CURSOR = "▏"


@dataclass(frozen=True, slots=True)
class KnobState:
    """Which knob is chosen, and what is being typed into it."""

    selected: int = 0
    typed: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KnobLine:
    """A line and the knob that it belongs to, None under the rows."""

    line: Line
    place: int | None


def knob_lines(
    knobs: Sequence[Knob], setup: Setup, state: KnobState, width: int, height: int
) -> list[KnobLine]:
    """A row for each knob, a problem under its row, and at the bottom what the chosen one means."""
    lines: list[KnobLine] = []
    for place, knob in enumerate(knobs):
        is_selected = place == state.selected
        lines.append(KnobLine(_row(knob, setup, state, width, is_selected=is_selected), place))
        if is_selected and state.problem:
            lines += [KnobLine(part, place) for part in _problem(state.problem, width)]
    return [*lines, *_help(knobs[state.selected], width, height - len(lines))]


def _row(knob: Knob, setup: Setup, state: KnobState, width: int, *, is_selected: bool) -> Line:
    is_idle = knob.is_idle(setup)
    room = width - LABEL_WIDTH
    if is_selected and state.typed is not None:
        value: Line = (Run(visible(state.typed)[-(room - 2) :], "strong"), Run(CURSOR, "accent"))
    else:
        style = "muted" if is_idle else "strong"
        value = clipped((Run(visible(knob.shown(setup)), style),), room - 4)
        arrow = "accent" if is_selected else "muted"
        ends = ("◂ ", " ▸") if is_selected else ("  ", "  ")
        value = (Run(ends[0], arrow), *value, Run(ends[1], arrow))
    label = Run(f"{'▸' if is_selected else ' '} {knob.label:<{LABEL_WIDTH - 2}}",
                "accent" if is_selected else "muted" if is_idle else "")  # fmt: skip
    return (label, Run(" " * max(room - width_of(value), 0)), *value)


def _problem(text: str, width: int) -> list[Line]:
    parts = wrap(visible(text), max(width - 4, 10))
    return [(Run(f"  {'✗' if i == 0 else ' '} {part}", "bad"),) for i, part in enumerate(parts)]


def _help(knob: Knob, width: int, height: int) -> list[KnobLine]:
    """What a knob means, at the bottom of what is left."""
    lines: list[Line] = [(Run(part, "muted"),) for part in wrap(knob.help, width)]
    if height < len(lines) + 1:
        return []
    return [KnobLine(line, None) for line in (*[EMPTY] * (height - len(lines)), *lines)]
