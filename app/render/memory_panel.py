"""The memory panel: what was planned, what llama.cpp allocated, what the process takes."""

from collections.abc import Sequence
from itertools import groupby

from app.chat.snapshot import CockpitSnapshot, PlannedBytes
from app.render import format as fmt
from app.render.cache_bars import longest
from app.render.lines import Line, Run, clipped
from app.render.panel_rows import LABEL_WIDTH, row
from engine.events import BufferSize


def memory_lines(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """The rows of the panel.

    Args:
        snapshot: What to show.
        width: Cells inside the frame.
    """
    measured = sum(buffer.nbytes for buffer in snapshot.buffers) if snapshot.buffers else None
    lines = [
        row("planned", *_planned(snapshot.planned)),
        row("measured", _size(measured), *_difference(snapshot.planned, measured)),
        row("process", _size(snapshot.process_bytes)),
        _by_kind(snapshot.buffers, width),
    ]
    return [clipped(runs, width) for runs in lines]


def _size(nbytes: int | None) -> str:
    return fmt.NO_VALUE if nbytes is None else fmt.nbytes(nbytes)


def _planned(planned: PlannedBytes | None) -> list[Run]:
    """Both parts of the planner's sum: what is compared below, and what comes beside it."""
    if planned is None:
        return [Run(fmt.NO_VALUE)]
    return [
        Run(fmt.nbytes(planned.buffers)),
        Run(f"  + {fmt.nbytes(planned.overhead)} overhead", "muted"),
    ]


def _difference(planned: PlannedBytes | None, measured: int | None) -> list[Run]:
    if planned is None or not measured:
        return []
    off = (planned.buffers - measured) / measured
    if abs(off) < 0.0005:
        return [Run("  as planned", "good")]
    return [Run(f"  plan {off:+.1%}", "muted" if abs(off) < 0.05 else "warn")]


def _by_kind(buffers: tuple[BufferSize, ...], width: int) -> Line:
    """Sizes by kind, largest first; those of a draft model as one. The longest that fits."""
    named = sorted((b.kind if b.owner == "target" else b.owner, b.nbytes) for b in buffers)
    sums = [(name, sum(n for _, n in group)) for name, group in groupby(named, lambda b: b[0])]
    ordered = sorted(sums, key=lambda item: -item[1])
    told = [(name, nbytes) for name, nbytes in ordered if nbytes]
    long = " · ".join(f"{name} {fmt.nbytes(nbytes)}" for name, nbytes in told)
    if len(long) <= width - LABEL_WIDTH:
        return row("", Run(long, "muted"))
    shorter = (_largest(told, n) for n in range(len(told), 0, -1))
    return (Run(longest((long, *shorter), width), "muted"),)


def _largest(told: Sequence[tuple[str, int]], n: int) -> str:
    """The first `n` sizes in short, and behind them the sum of the others: `KV 180M +205K`."""
    named = " · ".join(f"{name} {fmt.short_nbytes(nbytes)}" for name, nbytes in told[:n])
    others = sum(nbytes for _, nbytes in told[n:])
    return f"{named} +{fmt.short_nbytes(others)}" if others else named
