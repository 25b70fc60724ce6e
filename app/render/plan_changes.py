"""The options of a plan, and the changes that the planner suggests."""

from app import format as fmt
from app.render.lines import Line, Run, clipped, hanging, width_of, wrapped
from app.render.plan import VERDICT_SIGNS
from app.sanitize import one_line, visible
from engine.planning.changes import Change, OptionSteps
from engine.planning.options import NO_GPU, PlanOption
from engine.planning.planner import Facts, Setup
from engine.planning.verdict import FitVerdict

VALUE_COLUMN = 12
"""Cells before the arrow to the previous value."""
DELTA_WIDTH, GAIN_WIDTH = 10, 7
MINUS = "\N{MINUS SIGN}"


def option_line(option: PlanOption, setup: Setup, facts: Facts, width: int) -> Line:
    """The label and the value of an option, between the arrows that step it."""
    reason = option.disabled_reason(setup, facts)
    text = "no GPU" if reason == NO_GPU else visible(option.format(setup))
    value = clipped((Run(text, "muted" if reason else "strong"),), width - VALUE_COLUMN - 4)
    left, right = ("  ", "  ") if reason else ("◂ ", " ▸")
    gap = " " * max(width - VALUE_COLUMN - 4 - width_of(value), 0)
    label = Run(f"{option.label:<{VALUE_COLUMN}}", "muted" if reason else "")
    return (label, Run(left, "muted"), Run(gap), *value, Run(right, "muted"))


def option_help(
    option: PlanOption, setup: Setup, facts: Facts, steps: OptionSteps, problem: str, width: int
) -> list[Line]:
    """The meaning of an option, and a problem, why it has no effect, or the effect of a step."""
    lines = wrapped((Run(option.help, "muted"),), width)
    if problem:
        return [*hanging((Run("✗ ", "bad"),), (Run(one_line(problem), "bad"),), width), *lines]
    if reason := option.disabled_reason(setup, facts):
        return [*lines, *wrapped((Run(f"not used: {reason}", "warn"),), width)]
    for sign, change in (("◂ ", steps.less), ("▸ ", steps.more)):
        if change is not None:
            lines.append(clipped((Run(sign, "accent"), *change_line(change)), width))
    return lines


def delta_text(nbytes: int) -> str:
    """A difference of memory with its sign."""
    if nbytes == 0:
        return "\N{PLUS-MINUS SIGN}0"
    return f"{'+' if nbytes > 0 else MINUS}{fmt.nbytes(abs(nbytes))}"


def gain_text(n_ctx: int) -> str:
    """A difference of the largest context with its sign; empty if there is none."""
    n = abs(n_ctx)
    size = str(n) if n < 1000 else f"{n / 1024:.{1 if n < 10 * 1024 else 0}f}k"
    return f"{'+' if n_ctx > 0 else MINUS}{size}" if n_ctx else ""


def change_line(change: Change) -> Line:
    """The verdict after a change, its effect on memory and largest context, and its name."""
    delta = change.delta_bytes
    style = "good" if delta < 0 else "warn" if delta > 0 else "muted"
    return (
        VERDICT_SIGNS[change.verdict],
        Run(f"{delta_text(delta):>{DELTA_WIDTH}}", style),
        Run(f"{gain_text(change.delta_n_ctx):>{GAIN_WIDTH}}  "),
        Run(change.label, "strong"),
    )


def change_lines(changes: tuple[Change, ...], width: int, hint: str = "") -> list[Line]:
    """The suggested changes below a heading; nothing if there are none."""
    effect = Run(f"  effect on memory and largest context{hint}", "muted")
    heading = (Run("alternatives", "heading-minor"), effect)
    return [clipped(line, width) for line in (heading, *map(change_line, changes)) if changes]


def advice_line(changes: tuple[Change, ...], verdict: FitVerdict) -> Line:
    """The best change that makes a plan fit; empty if the plan fits or no change helps."""
    first = next(iter(changes), None)
    if first is None or verdict is FitVerdict.FITS or first.verdict is not FitVerdict.FITS:
        return ()
    freed = f"  {delta_text(first.delta_bytes)} · press a to apply"
    return (Run("fits with ", "good"), Run(first.label, "strong"), Run(freed, "muted"))
