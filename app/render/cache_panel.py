"""The KV panel: cells in use, their bytes, and how much of the prompt was there already."""

from app.chat.snapshot import CockpitSnapshot
from app.render import format as fmt
from app.render.gauges import GraphSymbols, bar
from app.render.lines import Line, Run, clipped
from app.render.panel_rows import LABEL_WIDTH, row

_LABELS = ("cells", "", "bytes", "prefix")


def cache_lines(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols = "block"
) -> list[Line]:
    """The rows of the panel.

    Args:
        snapshot: What to show.
        width: Cells inside the frame.
        symbols: Which characters to draw with.
    """
    cache = snapshot.cache
    kv_bytes = sum(b.nbytes for b in snapshot.buffers if b.kind == "KV" and b.owner == "target")
    n_cells = cache.n_cells if cache else snapshot.n_ctx
    n_used = cache.n_used if cache else 0
    kv_bytes = cache.kv_bytes if cache else kv_bytes
    if not n_cells or not kv_bytes:
        return [row(label, fmt.NO_VALUE if label else "") for label in _LABELS]
    share = n_used / n_cells
    lines = [
        (
            Run(f"{'cells':<{LABEL_WIDTH}}", "muted"),
            *bar(share, max(width - LABEL_WIDTH - 6, 1), symbols),
            Run(f"{fmt.percent(share):>6}"),
        ),
        row("", f"{fmt.count(n_used)} of {fmt.count(n_cells)} cells"),
        row("bytes", f"{fmt.nbytes(round(kv_bytes * share))} of {fmt.nbytes(kv_bytes)}"),
        row("prefix", *_reused(snapshot)),
    ]
    return [clipped(runs, width) for runs in lines]


def _reused(snapshot: CockpitSnapshot) -> list[Run]:
    cache = snapshot.cache
    if cache is None or not cache.n_prompt:
        return [Run(fmt.NO_VALUE)]
    text = f"reused {fmt.count(cache.n_reused)} of {fmt.count(cache.n_prompt)} tokens"
    note = f"  {snapshot.reuse_note}" if snapshot.reuse_note else ""
    return [Run(text), Run(note, "muted")] if note else [Run(text)]
