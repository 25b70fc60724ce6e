"""What may be changed in a plan, what each change brings, and two plans beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from app import format as fmt
from app.render.lines import EMPTY, Line, Run, clipped, hanging, width_of
from app.render.plan import VERDICT_SIGNS
from app.sanitize import one_line, visible
from engine.planning.changes import Change, OptionSteps
from engine.planning.options import NO_GPU, PlanOption
from engine.planning.planner import Facts, Setup
from engine.planning.verdict import FitVerdict

LABEL_WIDTH = 14
CURSOR = "▏"
N_ARROWS = 2
MAX_HELP = 3
LEAST_ROWS = 6
"""Rows that the options keep, whatever stands under them."""


@dataclass(frozen=True, slots=True)
class OptionState:
    """Which option is chosen, what is being typed into it, and the first row in sight."""

    selected: int = 0
    typed: str | None = None
    problem: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class OptionLine:
    """A line and the option that it belongs to, None under the rows."""

    line: Line
    index: int | None


@dataclass(frozen=True, slots=True)
class OptionSheet:
    """The lines of the panel, where the rows were scrolled to, and how many are out of sight."""

    lines: list[OptionLine]
    first: int
    n_above: int
    n_below: int


def option_sheet(
    options: Sequence[PlanOption],
    setup: Setup,
    facts: Facts,
    state: OptionState,
    width: int,
    height: int,
    steps: OptionSteps | None = None,
) -> OptionSheet:
    """The panel: rows that scroll, a problem under its row, and at the bottom the help."""
    foot = _foot(options[state.selected], setup, facts, steps, width)
    problem = _problem(state.problem, width) if state.problem else []
    room = max(height - len(foot) - len(problem), min(LEAST_ROWS, height))
    n_rows = min(len(options), room)
    first = min(state.first, len(options) - n_rows)
    first = min(max(first, state.selected - n_rows + 1), state.selected)
    lines: list[OptionLine] = []
    for index in range(first, first + n_rows):
        row = _row(options[index], setup, facts, state, width, is_selected=index == state.selected)
        lines.append(OptionLine(row, index))
        if index == state.selected:
            lines += [OptionLine(part, index) for part in problem]
    gap = max(height - len(lines) - len(foot), 0)
    lines += [OptionLine(line, None) for line in (*[EMPTY] * gap, *foot)]
    return OptionSheet(lines[:height], first, first, len(options) - first - n_rows)


def _row(
    option: PlanOption,
    setup: Setup,
    facts: Facts,
    state: OptionState,
    width: int,
    *,
    is_selected: bool,
) -> Line:
    reason = option.disabled_reason(setup, facts)
    is_idle = bool(reason)
    room = width - LABEL_WIDTH
    if is_selected and state.typed is not None:
        value: Line = (Run(visible(state.typed)[-(room - 2) :], "strong"), Run(CURSOR, "accent"))
    else:
        style = "muted" if is_idle else "strong"
        text = "no GPU" if reason == NO_GPU else visible(option.format(setup))
        value = clipped((Run(text, style),), room - 4)
        arrow = "accent" if is_selected else "muted"
        ends = ("◂ ", " ▸") if is_selected and not is_idle else ("  ", "  ")
        value = (Run(ends[0], arrow), *value, Run(ends[1], arrow))
    label = Run(f"{'▸' if is_selected else ' '} {option.label:<{LABEL_WIDTH - 2}}",
                "accent" if is_selected else "muted" if is_idle else "")  # fmt: skip
    return (label, Run(" " * max(room - width_of(value), 0)), *value)


def _problem(text: str, width: int) -> list[Line]:
    return hanging((Run("  ✗ ", "bad"),), (Run(one_line(text), "bad"),), width)


def _foot(
    option: PlanOption, setup: Setup, facts: Facts, steps: OptionSteps | None, width: int
) -> list[Line]:
    """What the chosen option means, and what a step would change or why it changes nothing."""
    parts = wrap(option.help, width)[:MAX_HELP]
    help_lines: list[Line] = [(Run(part, "muted"),) for part in parts]
    gap: list[Line] = [EMPTY] * (MAX_HELP - len(help_lines))
    reason = option.disabled_reason(setup, facts)
    if reason:
        parts = wrap(f"\N{EN DASH} not used: {reason}", max(width, 10))[:N_ARROWS]
        below: list[Line] = [(Run(part, "warn"),) for part in parts]
    elif option.chooser is not None:
        below = [(Run("▸ opens the list", "muted"),)] if option.chooser != "device" else []
    else:
        below = step_lines(steps, width)
    return [*gap, *help_lines, *below, *[EMPTY] * (N_ARROWS - len(below))]


DELTA_WIDTH = 9
GAIN_WIDTH = 6
EFFECT_WIDTH = 8
MINUS = "\N{MINUS SIGN}"


def delta_text(nbytes: int) -> str:
    """A difference of memory with its sign."""
    if nbytes == 0:
        return "\N{PLUS-MINUS SIGN}0"
    return f"{'+' if nbytes > 0 else MINUS}{fmt.nbytes(abs(nbytes))}"


def gain_text(n_ctx: int) -> str:
    """A difference of the largest context with its sign, empty where there is none."""
    if n_ctx == 0:
        return ""
    n = abs(n_ctx)
    digits = 1 if n < 10 * 1024 else 0
    size = str(n) if n < 1000 else f"{n / 1024:.{digits}f}k"
    return f"{'+' if n_ctx > 0 else MINUS}{size}"


def step_lines(steps: OptionSteps | None, width: int) -> list[Line]:
    """What a step back and a step on of the chosen option change; always two lines."""
    if steps is None:
        return [(), ()]
    return [
        _step_line("◂", steps.less, width),
        _step_line("▸", steps.more, width),
    ]


def _step_line(sign: str, change: Change | None, width: int) -> Line:
    if change is None:
        return (Run(f"{sign} ", "accent"), Run("no further value", "muted"))
    label = clipped((Run(change.label),), EFFECT_WIDTH)[0].text
    gain = gain_text(change.delta_n_ctx)
    return clipped(
        (
            Run(f"{sign} ", "accent"),
            Run(f"{label:<{EFFECT_WIDTH}}"),
            Run(f"{delta_text(change.delta_bytes):>{DELTA_WIDTH + 1}}", _style(change.delta_bytes)),
            Run(f"{gain:>{GAIN_WIDTH + 1}} ", "muted"),
            VERDICT_SIGNS[change.verdict],
        ),
        width,
    )


def change_lines(changes: tuple[Change, ...], width: int, hint: str = "") -> list[Line]:
    """The changes worth a thought, one a line under their heading, which says what a key does."""
    if not changes:
        return []
    heading: Line = (
        Run("alternatives", "heading-minor"), Run(f"  memory, largest context{hint}", "muted")
    )  # fmt: skip
    return [clipped(line, width) for line in (heading, *map(change_line, changes))]


def advice_line(changes: tuple[Change, ...], verdict: FitVerdict) -> Line:
    """The first change that makes a plan fit; empty where it fits, or where none does."""
    first = next(iter(changes), None)
    if first is None or verdict is FitVerdict.FITS or first.verdict is not FitVerdict.FITS:
        return ()
    freed = f"  {delta_text(first.delta_bytes)} · press a to apply"
    return (Run("fits with ", "good"), Run(first.label, "strong"), Run(freed, "muted"))


def change_line(change: Change) -> Line:
    """One change: whether it fits then, the memory, the largest context, and what is done."""
    return (
        VERDICT_SIGNS[change.verdict],
        Run(f"{delta_text(change.delta_bytes):>{DELTA_WIDTH + 1}}", _style(change.delta_bytes)),
        Run(f"{gain_text(change.delta_n_ctx):>{GAIN_WIDTH + 1}}  "),
        Run(change.label, "strong"),
    )


def _style(delta_bytes: int) -> str:
    return "good" if delta_bytes < 0 else "warn" if delta_bytes > 0 else "muted"
