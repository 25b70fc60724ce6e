"""The speculation panel: acceptance, counts, lengths, and shares by source and position."""

from collections.abc import Callable, Mapping, Sequence

from app import format as fmt
from app.chat.snapshot import CockpitSnapshot
from app.render.charts import GraphSymbols, history, ribbon
from app.render.lines import EMPTY, Line, Run, clipped, spread, width_of, wrapped
from app.render.status import LABEL_WIDTH, columns, labelled, row
from app.render.transcript import source_style
from engine.events import GenerationStats, PositionCounts, SourceCounts

_BETWEEN = Run(" · ", "muted")

REASON_CELLS = 85
"""Cells of the longest usual reason, for which lines are kept free."""
N_FIGURES = 6
"""Lines of the figures."""


def source_shares(by_source: Mapping[str, SourceCounts], width: int) -> list[Line]:
    """Accepted of verified tokens of each source, the most useful first: `suffix 301/380 79%`.

    Few tokens have no percentage: `suffix 2/3`. A source that does not fit into the line any more
    begins the next one.
    """
    lines: list[Line] = [EMPTY]
    for name, counts in sorted(by_source.items(), key=lambda item: -item[1].n_accepted):
        figures = f" {fmt.count(counts.n_accepted)}/{fmt.count(counts.n_verified)}"
        part: Line = (Run(name, source_style(name)), Run(figures))
        if counts.n_verified >= fmt.MANY:
            rate = fmt.acceptance(counts.n_accepted, counts.n_verified)
            part = (*part, Run(f" {rate}", "strong"))
        joined = (*lines[-1], _BETWEEN, *part) if lines[-1] else part
        if lines[-1] and width_of(joined) > width:
            lines.append(part)
        else:
            lines[-1] = joined
    return lines if by_source else [(Run(fmt.NO_VALUE),)]


def position_shares(
    by_position: Sequence[PositionCounts], width: int, symbols: GraphSymbols
) -> Line:
    """How often the first, second, third ... token of a draft is right when those before it are.

    Columns first, then as many numbers as there is room for: `90% 50% 3/4 examined`. What was
    verified behind the first miss is not examined, so these are fewer than the verified tokens.
    """
    rates = [fmt.share(counts.n_accepted, counts.n_examined) for counts in by_position]
    if not rates:
        return (Run(fmt.NO_VALUE),)
    bars = history(rates, max(width, 1), symbols, top=1.0)
    room = width - len(rates) - 2
    numbers = ""
    for counts in by_position:
        text = fmt.acceptance(counts.n_accepted, counts.n_examined)
        if len(numbers) + 1 + len(text) > room:
            break
        numbers += f" {text}"
    if numbers and len(numbers) + len(" examined") <= room:
        numbers += " examined"
    return (*bars, Run(f" {numbers}", "muted")) if numbers else bars


def speculation_lines(
    snapshot: CockpitSnapshot,
    width: int,
    symbols: GraphSymbols = "block",
    *,
    height: int | None = None,
) -> list[Line]:
    """The rows of the panel, `width` cells wide at most.

    The figures come first, what the rule decided and why next.

    Args:
        snapshot: What to show.
        width: Cells inside the frame.
        symbols: Which characters to draw with.
        height: Lines that there are; None is as many as it takes.
    """
    decision = _decision(snapshot, width, symbols, None)
    is_tight = height is not None and height < N_FIGURES + len(decision)
    figures = _figures(snapshot, width, symbols, is_tight=is_tight)
    n_left = None if height is None else height - len(figures)
    lines = [*figures, *_decision(snapshot, width, symbols, n_left)]
    return [clipped(runs, width) for runs in lines]


def _figures(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols, *, is_tight: bool = False
) -> list[Line]:
    reply, session = snapshot.reply, snapshot.session
    accepted = columns("accept", *_both(reply, session, _accept), first=_accept_style(reply))
    room = max(width - width_of(accepted) - 2, 0)
    counts = [
        columns("validated", *_both(reply, session, lambda t: _count(t, t.n_accepted))),
        columns("refuted", *_both(reply, session, lambda t: _count(t, t.n_refuted))),
    ]
    if is_tight:
        refuted = Run(f"  refuted {_count(reply, reply.n_refuted)}", "muted")
        counts = [(*columns("validated", _count(reply, reply.n_accepted)), refuted)]
    return [
        columns("", "reply", "session", first="muted", rest="muted"),
        spread(accepted, history(snapshot.acceptance_history, room, symbols, top=1.0), width),
        *counts,
        columns("tokens/round", *_both(reply, session, _tokens_per_round)),
        columns(
            "time saved",
            *_both(reply, session, _saved),
            first=_saved_style(reply),
            rest=_saved_style(session),
        ),
    ]


def _decision(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols, height: int | None
) -> list[Line]:
    """The ribbon, the shares of sources and positions, and the reason in full.

    The shares are the session's, and say so, where the reply has none.

    The reason keeps its lines when it becomes shorter, so that nothing below jumps; positions and
    further sources make room for it where there is little.
    """
    room = width - LABEL_WIDTH
    is_of_reply = bool(snapshot.reply.n_verified)
    told = snapshot.reply if is_of_reply else snapshot.session
    whose = () if is_of_reply or not told.n_verified else (Run("  session", "muted"),)
    reason = labelled(_length(snapshot), wrapped((_reason(snapshot),), max(room, 2)))
    reason += [EMPTY] * (REASON_CELLS // max(room, 1) + 1 - len(reason))
    drafts = row("drafts", *(ribbon(snapshot.verdicts, room, symbols) or (Run(fmt.NO_VALUE),)))
    shares = source_shares(told.by_source, room - width_of(whose))
    sources = labelled("by source", [(*shares[0], *whose), *shares[1:]])
    shares_by_position = position_shares(told.by_position, room - width_of(whose), symbols)
    positions = [row("by position", *shares_by_position, *whose)]
    if height is not None:
        positions = positions if height >= 3 + len(reason) else []
        sources = sources[: max(height - 1 - len(positions) - len(reason), 1)]
        reason = _cut(reason, height - 1 - len(positions) - len(sources), width)
    return [drafts, *sources, *positions, *reason]


def _cut(lines: list[Line], height: int, width: int) -> list[Line]:
    """The first lines, with a sign of it where there are more."""
    kept = lines[: max(height, 1)]
    if not any(lines[len(kept) :]):
        return kept
    return [*kept[:-1], (*clipped(kept[-1], width - 2), Run(" …", "muted"))]


def _reason(snapshot: CockpitSnapshot) -> Run:
    if snapshot.fault:
        return Run(snapshot.fault, "warn")
    return Run(snapshot.reason or fmt.NO_VALUE, "muted")


def speculation_title(snapshot: CockpitSnapshot) -> str:
    """Which predictor and controller are on, and what is unusual in how drafts are judged."""
    if not snapshot.predictor:
        return "speculation"
    if snapshot.predictor == "off":
        return "speculation · off"
    names = ("speculation", snapshot.predictor, snapshot.controller, *snapshot.verification_label)
    return " · ".join(filter(None, names))


def _both(
    reply: GenerationStats, session: GenerationStats, figure: Callable[[GenerationStats], str]
) -> tuple[str, str]:
    return figure(reply), figure(session)


def _count(tally: GenerationStats, n: int) -> str:
    """A count; a dash before the first round, of which nothing can be counted."""
    return fmt.count(n) if tally.n_rounds else fmt.NO_VALUE


def _accept(tally: GenerationStats) -> str:
    return fmt.acceptance(tally.n_accepted, tally.n_verified)


def _tokens_per_round(tally: GenerationStats) -> str:
    value = tally.tokens_per_round
    return fmt.NO_VALUE if value is None else f"{value:.2f}"


def _saved(tally: GenerationStats) -> str:
    return fmt.measured_gain(tally.saved_s, tally.saved_error_s)


def _saved_style(tally: GenerationStats) -> str:
    if tally.saved_s is None or fmt.gain_mark(tally.saved_s, tally.saved_error_s) is None:
        return ""
    return "good" if tally.saved_s >= 0 else "bad"


def _accept_style(tally: GenerationStats) -> str:
    return "" if tally.acceptance_rate is None else "strong"


def _length(snapshot: CockpitSnapshot) -> str:
    """The length of the next draft; a dash before `auto`, which has no length of its own, chose."""
    length = snapshot.next_length
    if length is None and snapshot.controller != "auto":
        length = snapshot.n_draft
    is_off = length is None or snapshot.predictor == "off"
    return f"length is {fmt.NO_VALUE if is_off else length}"
