"""The speculation panel: how often drafts are right, where they come from, what they bring."""

from collections.abc import Callable

from app.chat.snapshot import CockpitSnapshot
from app.chat.tally import Tally
from app.render import format as fmt
from app.render.gauges import GraphSymbols, history, ribbon
from app.render.lines import Line, Run, clipped, spread, width_of
from app.render.panel_rows import LABEL_WIDTH, columns, row


def speculation_lines(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols = "block"
) -> list[Line]:
    """The rows of the panel, `width` cells wide at most.

    Args:
        snapshot: What to show.
        width: Cells inside the frame.
        symbols: Which characters to draw with.
    """
    reply, session = snapshot.reply, snapshot.session
    n_columns = width - LABEL_WIDTH
    accepted = columns("accept", *_both(reply, session, _accept), first=_accept_style(reply))
    room = max(width - width_of(accepted) - 2, 0)
    lines = [
        columns("", "reply", "session", first="muted", rest="muted"),
        spread(accepted, history(snapshot.acceptance_history, room, symbols, top=1.0), width),
        columns("validated", *_both(reply, session, lambda t: fmt.count(t.n_accepted))),
        columns("refuted", *_both(reply, session, lambda t: fmt.count(t.n_refuted))),
        columns("tokens/round", *_both(reply, session, _tokens_per_round)),
        columns("time saved", *_both(reply, session, _saved), first=_saved_style(reply)),
        row("by source", *_by_source(reply if reply.by_source else session)),
        row("length now", _length(snapshot)),
        row("because", Run(snapshot.reason or fmt.NO_VALUE, "muted")),
        row("drafts", *(ribbon(snapshot.verdicts, n_columns, symbols) or (Run(fmt.NO_VALUE),))),
    ]
    return [clipped(runs, width) for runs in lines]


def speculation_title(snapshot: CockpitSnapshot) -> str:
    """Which predictor and controller are on."""
    if not snapshot.predictor:
        return "speculation"
    if snapshot.predictor == "off":
        return "speculation · off"
    return f"speculation · {snapshot.predictor} · {snapshot.controller}"


def _both(reply: Tally, session: Tally, figure: Callable[[Tally], str]) -> tuple[str, str]:
    return figure(reply), figure(session)


def _accept(tally: Tally) -> str:
    return fmt.percent(tally.acceptance_rate)


def _tokens_per_round(tally: Tally) -> str:
    value = tally.tokens_per_round
    return fmt.NO_VALUE if value is None else f"{value:.2f}"


def _saved(tally: Tally) -> str:
    return fmt.seconds(tally.saved_s if tally.n_verified else None)


def _saved_style(tally: Tally) -> str:
    if tally.saved_s is None or not tally.n_verified:
        return ""
    return "good" if tally.saved_s >= 0 else "warn"


def _accept_style(tally: Tally) -> str:
    return "" if tally.acceptance_rate is None else "strong"


def _by_source(tally: Tally) -> list[Run]:
    runs: list[Run] = []
    for name, counts in sorted(tally.by_source.items(), key=lambda item: -item[1].n_accepted):
        if runs:
            runs.append(Run(" · ", "muted"))
        runs.append(Run(f"{name} {fmt.count(counts.n_accepted)}/{fmt.count(counts.n_verified)}"))
    return runs or [Run(fmt.NO_VALUE)]


def _length(snapshot: CockpitSnapshot) -> str:
    length = snapshot.next_length if snapshot.next_length is not None else snapshot.n_draft
    return fmt.NO_VALUE if length is None or snapshot.predictor == "off" else str(length)
