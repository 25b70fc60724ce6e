"""Bars, histories, ribbons and the chart of costs, in three sets of symbols."""

from collections.abc import Sequence
from typing import Literal

from app.render.lines import EMPTY, Line, Run
from engine.events import CostsMeasured

GraphSymbols = Literal["block", "braille", "ascii"]

_RAMP: dict[GraphSymbols, str] = {
    "block": "▁▂▃▄▅▆▇█",
    "braille": "⡀⣀⣄⣤⣦⣶⣷⣿",
    "ascii": "_.-~=+*#",
}
_FULL: dict[GraphSymbols, tuple[str, str]] = {
    "block": ("█", "░"),
    "braille": ("⣿", "⣀"),
    "ascii": ("#", "."),
}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MARKS: dict[GraphSymbols, tuple[str, str]] = {
    "block": ("▪", "✗"),
    "braille": ("▪", "✗"),
    "ascii": ("+", "x"),
}

MIN_HEIGHT = 3
"""Lines under which a chart says nothing: two of bars, and the axis."""
MAX_HEIGHT = 8
LABEL_WIDTH = 5
TICK_EVERY = 4
_HEIGHTS: dict[GraphSymbols, str] = {
    "block": "▁▂▃▄▅▆▇█",
    "braille": "⣀⣀⣤⣤⣶⣶⣿⣿",
    "ascii": "...:::##",
}
_GUESS: dict[GraphSymbols, str] = {"block": "╌", "braille": "⠒", "ascii": "-"}
_CHOSEN: dict[GraphSymbols, str] = {"block": "▲", "braille": "▲", "ascii": "^"}


def bar(fraction: float, width: int, symbols: GraphSymbols) -> Line:
    """A filled part and a free part that are `width` cells together."""
    fraction = min(max(fraction, 0.0), 1.0)
    full, free = _FULL[symbols]
    if symbols != "block":
        n_full = round(fraction * width)
        return _joined(Run(full * n_full, "bar-used"), Run(free * (width - n_full), "bar-free"))
    n_full, eighths = divmod(round(fraction * width * 8), 8)
    if fraction > 0 and width and n_full == 0 and eighths == 0:
        eighths = 1
    tip = _EIGHTHS[eighths] if eighths else ""
    n_free = width - n_full - len(tip)
    # The tip has no free cells behind it, so it takes the background of the track.
    return _joined(
        Run(full * n_full, "bar-used"), Run(tip, "bar-used"), Run(free * n_free, "bar-free")
    )


def history(
    values: Sequence[float | None],
    width: int,
    symbols: GraphSymbols,
    *,
    top: float | None = None,
) -> Line:
    """The last `width` values as columns; a gap where a value is None.

    Args:
        values: Oldest first.
        width: Cells to fill at most.
        symbols: Which characters to draw with.
        top: Value of a full column; the largest one shown if None.
    """
    shown = list(values)[-width:]
    highest = top if top is not None else max((v for v in shown if v is not None), default=0.0)
    ramp = _RAMP[symbols]
    text = "".join(" " if v is None else ramp[_level(v, highest, len(ramp))] for v in shown)
    return (Run(text, "history"),) if text else EMPTY


def ribbon(verdicts: Sequence[bool], width: int, symbols: GraphSymbols) -> Line:
    """The last verdicts, oldest first: accepted and refuted differ in shape and in colour."""
    accepted, refuted = _MARKS[symbols]
    runs: list[Run] = []
    for verdict in list(verdicts)[-width:]:
        style = "accepted" if verdict else "refuted"
        mark = accepted if verdict else refuted
        if runs and runs[-1].style == style:
            runs[-1] = Run(runs[-1].text + mark, style)
        else:
            runs.append(Run(mark, style))
    return tuple(runs)


def _level(value: float, highest: float, n_levels: int) -> int:
    if highest <= 0:
        return 0
    return min(max(int(value / highest * n_levels), 0), n_levels - 1)


def _joined(*runs: Run) -> Line:
    return tuple(run for run in runs if run.text)


def cost_chart(
    costs: CostsMeasured | None,
    width: int,
    height: int,
    symbols: GraphSymbols = "block",
    *,
    chosen: int | None = None,
) -> list[Line]:
    """The chart, `height` lines; fewer than `MIN_HEIGHT` are none.

    Bars are measured numbers of tokens, dashes are what the rule takes the others to cost. Bars
    stand on zero, so that one twice as high costs twice the time.

    Args:
        costs: What was measured; None says that nothing was yet.
        width: Cells that the chart may take.
        height: Lines, the caption and the axis included.
        symbols: Which characters to draw with.
        chosen: Tokens in the next batch, marked on the axis; None marks none.
    """
    height = min(height, MAX_HEIGHT)
    if height < MIN_HEIGHT or width < LABEL_WIDTH + 2:
        return []
    if costs is None or not costs.curve:
        return [(Run("no batch was measured yet", "muted"),)]
    n_cells = width - LABEL_WIDTH
    n_rows = min(_n_shown(costs), n_cells)
    cells = max(min(n_cells // n_rows, 3), 1)
    has_caption = height > MIN_HEIGHT
    bars = _bars(costs, n_rows, cells, height - 1 - has_caption, symbols)
    axis = _axis(n_rows, cells, chosen, symbols)
    caption: list[Line] = [(Run(_caption(width, chosen, symbols), "muted"),)]
    return [*(caption if has_caption else []), *bars, axis]


def _caption(width: int, chosen: int | None, symbols: GraphSymbols) -> str:
    mark = "" if chosen is None else f", {_CHOSEN[symbols]} next"
    whole = f"steps that n tokens at once take{mark}"
    return whole if len(whole) <= width else f"steps n tokens take{mark}"


def _n_shown(costs: CostsMeasured) -> int:
    """How many numbers of tokens are drawn: a little more than was measured, 9 at least."""
    most = max((n_rows for n_rows, _ in costs.points), default=1)
    return min(max(most + 2, 9), len(costs.curve))


def _bars(
    costs: CostsMeasured, n_rows: int, cells: int, height: int, symbols: GraphSymbols
) -> list[Line]:
    measured = {n for n, _ in costs.points}
    steps = costs.curve[:n_rows]
    top = max(steps)
    lines: list[Line] = []
    for line in range(height):
        below = height - 1 - line
        runs = [Run(_label(top, line, height), "muted")]
        for n, value in enumerate(steps, start=1):
            eighths = round(value / top * height * 8) - below * 8
            style = "history" if n in measured else "bar-free"
            symbol = _cell(eighths, symbols, is_measured=n in measured)
            runs.append(Run(_spaced(symbol, cells), style))
        lines.append(tuple(runs))
    return lines


def _cell(eighths: int, symbols: GraphSymbols, *, is_measured: bool) -> str:
    """One character of a column that reaches `eighths` above the lower edge of its line."""
    if is_measured:
        return " " if eighths <= 0 else _HEIGHTS[symbols][min(eighths, 8) - 1]
    return _GUESS[symbols] if 0 < eighths <= 8 else " "


def _spaced(symbol: str, cells: int) -> str:
    """A column of `cells` cells, the last one a gap where there is room for one."""
    return symbol * cells if cells == 1 else symbol * (cells - 1) + " "


def _label(top: float, line: int, height: int) -> str:
    value = top * (height - line) / height
    text = f"{value:.1f}" if line in (0, height - 1) or height > 3 else ""
    return f"{text:>{LABEL_WIDTH - 1}} "


def _axis(n_rows: int, cells: int, chosen: int | None, symbols: GraphSymbols) -> Line:
    """The numbers of tokens under their columns; the chosen one is marked."""
    text = [" "] * (n_rows * cells + 2)
    mark = (chosen - 1) * cells if chosen is not None and chosen <= n_rows else None
    for n in range(1, n_rows + 1, TICK_EVERY):
        start = (n - 1) * cells
        if mark is None or not start <= mark < start + len(str(n)):
            text[start : start + len(str(n))] = str(n)
    line = "".join(text)
    label = Run(f"{'n':>{LABEL_WIDTH - 1}} ", "muted")
    if mark is None:
        return (label, Run(line.rstrip(), "muted"))
    runs = (Run(line[:mark], "muted"), Run(_CHOSEN[symbols], "accent"))
    return (label, *runs, Run(line[mark + 1 :].rstrip(), "muted"))
