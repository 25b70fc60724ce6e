"""The throughput panel: tokens per second, time to the first token, progress of the prefill."""

from app.chat.snapshot import CockpitSnapshot, Phase
from app.render import format as fmt
from app.render.gauges import GraphSymbols, bar, history
from app.render.lines import Line, Run, clipped, spread, width_of
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
    speed = row("decode", *_speed(snapshot))
    room = max(width - width_of(speed) - 2, 0)
    lines = [
        spread(speed, history(snapshot.tps_history, room, symbols), width),
        row("first token", fmt.seconds(snapshot.first_token_s)),
        _prefill(snapshot, width, symbols),
    ]
    return [clipped(runs, width) for runs in lines]


def _speed(snapshot: CockpitSnapshot) -> list[Run]:
    """Tokens a second, and how far plain steps differ where the machine is noisy."""
    if not snapshot.decode_tps:
        return [Run(fmt.NO_VALUE)]
    runs = [Run(f"{fmt.rate(snapshot.decode_tps)} tok/s", "strong")]
    if snapshot.plain_spread is not None and fmt.is_noisy(snapshot.plain_spread):
        runs.append(Run(f" noisy {fmt.plus_minus(snapshot.plain_spread)}", "warn"))
    return runs


def _prefill(snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols) -> Line:
    progress = snapshot.prefill
    if progress is not None and progress.n_total:
        text = f"  {fmt.count(progress.n_done)}/{fmt.count(progress.n_total)}"
        room = max(width - LABEL_WIDTH - len(text), 4)
        return row("prefill", *bar(progress.n_done / progress.n_total, room, symbols), Run(text))
    if snapshot.phase is Phase.PREFILL:
        return row("prefill", Run("…", "muted"))
    return row("prefill", fmt.seconds(snapshot.prefill_s))
