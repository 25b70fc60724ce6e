"""The throughput panel: tokens per second, time to the first token, progress of the prefill."""

from app.chat.snapshot import CockpitSnapshot, Phase
from app.render import format as fmt
from app.render.gauges import GraphSymbols, bar, history
from app.render.lines import Line, Run, clipped, spread
from app.render.panel_rows import LABEL_WIDTH, row


def throughput_lines(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols = "block"
) -> list[Line]:
    """The rows of the panel.

    Args:
        snapshot: What to show.
        width: Cells inside the frame.
        symbols: Which characters to draw with.
    """
    speed = Run(f"{fmt.rate(snapshot.decode_tps)} tok/s" if snapshot.decode_tps else fmt.NO_VALUE)
    lines = [
        spread(
            row("decode", Run(speed.text, "strong")),
            history(snapshot.tps_history, max(width - LABEL_WIDTH - 12, 0), symbols),
            width,
        ),
        row("first token", fmt.seconds(snapshot.first_token_s)),
        _prefill(snapshot, width, symbols),
    ]
    return [clipped(runs, width) for runs in lines]


def _prefill(snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols) -> Line:
    progress = snapshot.prefill
    if progress is not None and progress.n_total:
        text = f"  {fmt.count(progress.n_done)}/{fmt.count(progress.n_total)}"
        room = max(width - LABEL_WIDTH - len(text), 4)
        return row("prefill", *bar(progress.n_done / progress.n_total, room, symbols), Run(text))
    if snapshot.phase is Phase.PREFILL:
        return row("prefill", Run("…", "muted"))
    return row("prefill", fmt.seconds(snapshot.prefill_s))
