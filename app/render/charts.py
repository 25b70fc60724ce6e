"""Bars, histories and ribbons, in three sets of symbols."""

from collections.abc import Sequence
from typing import Literal

from app.render.lines import EMPTY, Line, Run

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
    # The tip has the background of the track, since no free cells follow.
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
