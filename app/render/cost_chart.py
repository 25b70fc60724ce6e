"""The batch curve as a small chart: what verifying several tokens at once costs here."""

from app.render.gauges import GraphSymbols
from app.render.lines import Line, Run
from engine.events import CostsMeasured

MIN_HEIGHT = 3
"""Lines under which a chart says nothing: two of bars, and the axis."""
MAX_HEIGHT = 8
LABEL_WIDTH = 5
TICK_EVERY = 4

_EIGHTHS: dict[GraphSymbols, str] = {
    "block": "▁▂▃▄▅▆▇█",
    "braille": "⣀⣀⣤⣤⣶⣶⣿⣿",
    "ascii": "...:::##",
}
_GUESS: dict[GraphSymbols, str] = {"block": "╌", "braille": "⠒", "ascii": "-"}
_CHOSEN: dict[GraphSymbols, str] = {"block": "▲", "braille": "▲", "ascii": "^"}


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
    """Give how many numbers of tokens are drawn: a little more than was measured, 9 at least."""
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
    """Give one character of a column that reaches `eighths` above the lower edge of its line."""
    if is_measured:
        return " " if eighths <= 0 else _EIGHTHS[symbols][min(eighths, 8) - 1]
    return _GUESS[symbols] if 0 < eighths <= 8 else " "


def _spaced(symbol: str, cells: int) -> str:
    """Give a column of `cells` cells, the last one a gap where there is room for one."""
    return symbol * cells if cells == 1 else symbol * (cells - 1) + " "


def _label(top: float, line: int, height: int) -> str:
    value = top * (height - line) / height
    text = f"{value:.1f}" if line in (0, height - 1) or height > 3 else ""
    return f"{text:>{LABEL_WIDTH - 1}} "


def _axis(n_rows: int, cells: int, chosen: int | None, symbols: GraphSymbols) -> Line:
    """Give the numbers of tokens under their columns; the chosen one is marked in its place."""
    text = [" "] * (n_rows * cells + 2)
    mark = (chosen - 1) * cells if chosen is not None and chosen <= n_rows else None
    for n in range(1, n_rows + 1, TICK_EVERY):
        place = (n - 1) * cells
        if mark is None or not place <= mark < place + len(str(n)):
            text[place : place + len(str(n))] = str(n)
    line = "".join(text)
    label = Run(f"{'n':>{LABEL_WIDTH - 1}} ", "muted")
    if mark is None:
        return (label, Run(line.rstrip(), "muted"))
    runs = (Run(line[:mark], "muted"), Run(_CHOSEN[symbols], "accent"))
    return (label, *runs, Run(line[mark + 1 :].rstrip(), "muted"))
