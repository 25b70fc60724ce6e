"""The KV panel: how full the tiers are, where the prompt came from, what reuse was good for."""

from app.chat.snapshot import CockpitSnapshot
from app.render.cache_bars import labelled, tier_block, tier_line, tiers_of
from app.render.cache_counts import (
    moves_line,
    note_line,
    prefetch_line,
    prefix_line,
    prefix_lines,
    reuse_line,
    tokens_line,
)
from app.render.gauges import GraphSymbols
from app.render.lines import Line, clipped

N_BLOCKS = 6
"""Lines of the tiers where each has two."""


def cache_lines(
    snapshot: CockpitSnapshot,
    width: int,
    symbols: GraphSymbols = "block",
    *,
    height: int | None = None,
) -> list[Line]:
    """The rows of the panel: what matters most first, the rest as far as there is room.

    Args:
        snapshot: What to show; nothing is claimed before the cache's first report.
        width: Cells inside the frame.
        symbols: Which characters to draw with.
        height: Lines inside the frame; None shows everything.
    """
    tiers = tiers_of(snapshot)
    below = _below(snapshot, width)
    is_tall = height is None or height >= N_BLOCKS + len(below)
    if is_tall:
        bars = [line for tier in tiers for line in tier_block(tier, width, symbols)]
        spare = None if height is None else height - N_BLOCKS - len(below)
        prefix = prefix_lines(snapshot.cache, snapshot.reuse_note, width)
        if spare is None or len(prefix) <= 1 + spare:
            below = [*prefix, *below[1:]]
    else:
        bars = [tier_line(tier, width, symbols) for tier in tiers]
    return [clipped(line, width) for line in [*bars, *below][:height]]


def _below(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """One line each, the most useful first."""
    lines = [prefix_line(snapshot.cache, snapshot.reuse_note, width)]
    counts = snapshot.tiers.counts if snapshot.tiers is not None else None
    if counts is not None:
        lines.append(reuse_line(counts, width))
    if snapshot.cache_log and snapshot.cache_log[-1].is_problem:
        # What else happened stands in the log of the cache's own screen.
        lines.append(labelled("log", *note_line(snapshot.cache_log[-1], width)))
    if counts is not None:
        lines += [render(counts, width) for render in (moves_line, prefetch_line, tokens_line)]
    return lines
