"""The panels beside the chat: speculation, throughput, KV cache and memory."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from app import format as fmt
from app.chat.snapshot import CockpitSnapshot, Phase, PlannedBytes
from app.render.charts import GraphSymbols, bar, history, ribbon
from app.render.lines import EMPTY, Line, Run, clipped, field, labelled, spread, width_of, wrapped
from app.render.reuse import prefix_lines
from app.render.transcript import source_style
from app.sanitize import visible
from engine.cache.report import CacheCounts, CacheNote, TierName, TierUse
from engine.events import BufferSize, GenerationStats, PositionCounts, SourceCounts

INDENT = 13
"""Cells of the labels of all panels but the KV cache."""
VALUE_WIDTH = 9
N_REASON_LINES = 3
"""Lines that the reason for the draft length always takes, so that lines below stay in place."""
TIERS: tuple[TierName, ...] = ("hot", "warm", "cold")
TIER_WIDTH, TOKENS_WIDTH, BYTES_WIDTH, MIN_BAR = 7, 9, 12, 4
FIGURES = ("accept", "validated", "refuted", "tokens/round", "time saved")


def row(label: str, *values: str | Run) -> Line:
    """A label and its values."""
    return labelled(label, *values, width=INDENT)


def clipped_all(lines: Sequence[Line], width: int) -> list[Line]:
    """Every line cut to a width."""
    return [clipped(line, width) for line in lines]


# --- speculation ---


def speculation_title(snapshot: CockpitSnapshot) -> str:
    """The predictor, the controller and an unusual verification."""
    if snapshot.predictor == "off":
        return "speculation · off"
    names = (snapshot.predictor, snapshot.controller, *snapshot.verification_label)
    return " · ".join(filter(None, ("speculation", *(names if snapshot.predictor else ()))))


def speculation_lines(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols = "block"
) -> list[Line]:
    """Figures of the reply and the session, the last verdicts, the reason, shares of drafts."""
    reply, session = snapshot.reply, snapshot.session
    lines = [row("", *(Run(f"{name:>{VALUE_WIDTH}}", "muted") for name in ("reply", "session")))]
    both = zip(FIGURES, _figures(reply), _figures(session), strict=True)
    lines += [row(label, of_reply, of_session) for label, of_reply, of_session in both]
    space = max(width - width_of(lines[1]) - 2, 0)
    chart = history(snapshot.acceptance_history, space, symbols, top=1.0)
    lines[1] = spread(lines[1], chart, width)
    verdicts = ribbon(snapshot.verdicts, max(width - INDENT, 0), symbols)
    lines.append(row("drafts", *(verdicts or (Run(fmt.NO_VALUE),))))
    lines += _reason(snapshot, width)
    of_session = not reply.n_verified and session.n_verified > 0
    shown = session if of_session else reply
    whose = Run("session: " if of_session else "", "muted")
    lines.append(row("by source", whose, *source_shares(shown.by_source)))
    lines.append(row("by position", whose, *position_shares(shown.by_position, symbols)))
    return clipped_all(lines, width)


def _figures(stats: GenerationStats) -> list[Run]:
    """The values of `FIGURES`; a dash for what was not counted or is within the noise."""
    has_begun, per_round = stats.n_rounds > 0, stats.tokens_per_round
    is_known = fmt.gain_mark(stats.saved_s, stats.saved_error_s) is not None
    saved_style = ("good" if (stats.saved_s or 0) >= 0 else "bad") if is_known else ""
    values = (
        (fmt.acceptance(stats.n_accepted, stats.n_verified), "strong" * (stats.n_verified > 0)),
        (fmt.count(stats.n_accepted if has_begun else None), ""),
        (fmt.count(stats.n_refuted if has_begun else None), ""),
        (fmt.NO_VALUE if per_round is None else f"{per_round:.2f}", ""),
        (fmt.measured_gain(stats.saved_s, stats.saved_error_s), saved_style),
    )
    return [Run(f"{text:>{VALUE_WIDTH}}", style) for text, style in values]


def _reason(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    length = snapshot.next_length
    if length is None and snapshot.controller != "auto":
        length = snapshot.n_draft
    is_off = length is None or snapshot.predictor == "off"
    label = f"drafts of {fmt.NO_VALUE if is_off else length}"
    reason = Run(snapshot.reason or fmt.NO_VALUE, "muted")
    value = Run(snapshot.fault, "warn") if snapshot.fault else reason
    lines = field(label, (value,), width, indent=INDENT)
    return [*lines, *[EMPTY] * (N_REASON_LINES - len(lines))]


def source_shares(by_source: Mapping[str, SourceCounts]) -> Line:
    """Accepted of verified tokens of each source, the most useful first: `suffix 301/380 79%`."""
    runs: list[Run] = []
    for name, counts in sorted(by_source.items(), key=lambda item: -item[1].n_accepted):
        runs += [Run(" · ", "muted")] if runs else []
        figures = f" {fmt.count(counts.n_accepted)}/{fmt.count(counts.n_verified)}"
        runs += [Run(name, source_style(name)), Run(figures)]
        if counts.n_verified >= fmt.MANY:
            runs.append(Run(f" {fmt.acceptance(counts.n_accepted, counts.n_verified)}", "strong"))
    return tuple(runs) or (Run(fmt.NO_VALUE),)


def position_shares(by_position: Sequence[PositionCounts], symbols: GraphSymbols) -> Line:
    """Acceptance of the first, second, third ... token of a draft, if those before are accepted."""
    if not by_position:
        return (Run(fmt.NO_VALUE),)
    rates = [fmt.share(counts.n_accepted, counts.n_examined) for counts in by_position]
    texts = (fmt.acceptance(counts.n_accepted, counts.n_examined) for counts in by_position)
    return (*history(rates, len(rates), symbols, top=1.0), Run(f"  {' '.join(texts)}", "muted"))


# --- throughput ---


def throughput_lines(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols = "block"
) -> list[Line]:
    """Decode speed, time to the first token, prefill and threads."""
    speed = row("decode", *_speed(snapshot))
    chart = history(snapshot.tps_history, max(width - width_of(speed) - 2, 0), symbols)
    lines = [
        spread(speed, chart, width),
        row("first token", fmt.seconds(snapshot.first_token_s)),
        _prefill(snapshot, width, symbols),
        row("threads", *_threads(snapshot)),
    ]
    return clipped_all(lines, width)


def _speed(snapshot: CockpitSnapshot) -> Line:
    if not snapshot.decode_tps:
        return (Run(fmt.NO_VALUE),)
    speed = Run(f"{fmt.rate(snapshot.decode_tps)} tok/s", "strong")
    if snapshot.plain_spread is None or not fmt.is_noisy(snapshot.plain_spread):
        return (speed,)
    return (speed, Run(f" noisy {fmt.plus_minus(snapshot.plain_spread)}", "warn"))


def _prefill(snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols) -> Line:
    progress = snapshot.prefill
    if progress is None or not progress.n_total:
        is_running = snapshot.phase is Phase.PREFILL
        return row("prefill", "…" if is_running else fmt.seconds(snapshot.prefill_s))
    text = f"  {fmt.count(progress.n_done)}/{fmt.count(progress.n_total)}"
    space = max(width - INDENT - len(text), MIN_BAR)
    return row("prefill", *bar(progress.n_done / progress.n_total, space, symbols), text)


def _threads(snapshot: CockpitSnapshot) -> Line:
    threads = snapshot.threads
    if threads is None:
        return (Run(fmt.NO_VALUE),)
    prefill = f", {threads.n_prefill} for prompts"
    differs = threads.n_prefill != threads.n_decode
    return (
        Run(str(threads.n_decode), "strong"),
        Run(prefill if differs else ""),
        Run(f"  {threads.reason}" if threads.reason else "", "muted"),
    )


# --- memory ---


def memory_lines(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """Planned and measured memory, the memory of the process, and the buffers by kind."""
    planned, buffers = snapshot.planned, snapshot.buffers
    is_mapped = any(buffer.is_mapped for buffer in buffers)
    reclaimable = planned.reclaimable if planned and is_mapped else 0
    measured = sum(buffer.nbytes for buffer in buffers) - reclaimable if buffers else None
    plan = [Run(fmt.NO_VALUE)]
    if planned is not None:
        overhead = f"  + {fmt.nbytes(planned.overhead)} overhead"
        plan = [Run(fmt.nbytes(planned.buffers)), Run(overhead, "muted")]
    note = f"  {fmt.nbytes(reclaimable)} reclaimable" if reclaimable else ""
    note = "  kvchat itself" if snapshot.server else note
    lines = [
        row("planned", *plan),
        row("measured", _size(measured), _difference(planned, measured)),
        row("process", _size(snapshot.process_bytes), Run(note, "muted")),
        (Run(_by_kind(buffers, reclaimable), "muted"),),
    ]
    return clipped_all(lines, width)


def _size(nbytes: int | None) -> str:
    return fmt.NO_VALUE if nbytes is None else fmt.nbytes(nbytes)


def _difference(planned: PlannedBytes | None, measured: int | None) -> Run:
    if planned is None or not measured:
        return Run("")
    difference = (planned.buffers - measured) / measured
    if abs(difference) < 0.0005:
        return Run("  as planned", "good")
    return Run(f"  plan {difference:+.1%}", "muted" if abs(difference) < 0.05 else "warn")


def _by_kind(buffers: Sequence[BufferSize], reclaimable: int) -> str:
    """Sizes by kind, the largest first; those of a draft model as one."""
    named = [(b.kind if b.owner == "target" else b.owner, b.nbytes) for b in buffers]
    named = sorted([*named, ("model", -reclaimable)] if reclaimable else named)
    sums = [(name, sum(n for _, n in group)) for name, group in groupby(named, lambda b: b[0])]
    ordered = sorted(sums, key=lambda item: -item[1])
    return " · ".join(f"{name} {fmt.nbytes(nbytes)}" for name, nbytes in ordered if nbytes)


# --- KV cache ---


def cache_lines(
    snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols = "block"
) -> list[Line]:
    """Use of the tiers, reuse of the last prompt, counts, and the last problem."""
    lines = [tier_line(name, tier, width, symbols) for name, tier in tiers_of(snapshot).items()]
    lines += prefix_lines(snapshot, width)
    counts = snapshot.tiers.counts if snapshot.tiers is not None and not snapshot.server else None
    if counts is not None:
        lines.append(reuse_line(counts))
    if snapshot.cache_log and snapshot.cache_log[-1].is_problem:
        lines.append(labelled("log", *note_line(snapshot.cache_log[-1])))
    if counts is not None:
        lines += [*field("moves", (_moves(counts),), width), labelled("total", _tokens(counts))]
    return clipped_all(lines, width)


def tiers_of(snapshot: CockpitSnapshot) -> dict[TierName, TierUse | None]:
    """The tiers, None if unknown; with one slot, the hot tier as of the last round."""
    hot = _hot(snapshot)
    if snapshot.server:
        return {"hot": hot}
    tiers: dict[TierName, TierUse | None] = {"hot": hot, "warm": None, "cold": None}
    is_newer = hot is not None and snapshot.cache is not None and snapshot.n_slots == 1
    for tier in snapshot.tiers.tiers if snapshot.tiers is not None else ():
        if tier.name != "hot" or not is_newer:
            tiers[tier.name] = tier
    return tiers


def _hot(snapshot: CockpitSnapshot) -> TierUse | None:
    cache = snapshot.cache
    n_cells = cache.n_cells if cache else snapshot.n_ctx
    allocated = sum(b.nbytes for b in snapshot.buffers if b.kind == "KV" and b.owner == "target")
    kv_bytes = 0 if snapshot.server else (cache.kv_bytes or 0) if cache else allocated
    if not n_cells or not (kv_bytes or snapshot.server):
        return None
    n_used = cache.n_used if cache else 0
    nbytes = round(kv_bytes * n_used / n_cells)
    return TierUse("hot", int(n_used > 0), n_used, nbytes, kv_bytes, n_cells)


def tier_line(name: TierName, tier: TierUse | None, width: int, symbols: GraphSymbols) -> Line:
    """Name, bar, tokens and bytes of a tier."""
    if tier is None or not (tier.budget_bytes or tier.budget_tokens):
        return (tier_label(name), Run(fmt.NO_VALUE if tier is None else "off", "muted"))
    tokens, sizes = fmt.tokens(tier.n_tokens), ""
    if tier.budget_tokens:
        tokens += f"/{fmt.context_size(tier.budget_tokens)}"
    if tier.budget_bytes:
        sizes = f"{fmt.short_nbytes(tier.nbytes)}/{fmt.short_nbytes(tier.budget_bytes)}"
    figures = f" {tokens:>{TOKENS_WIDTH}} tok{sizes:>{BYTES_WIDTH}}"
    whole, used = tier.budget_tokens or tier.budget_bytes, tier.nbytes
    share = (tier.n_tokens if tier.budget_tokens else used) / whole
    space = max(width - TIER_WIDTH - len(figures), MIN_BAR)
    return (tier_label(name), *tier_bar(name, share, space, symbols), Run(figures))


def tier_label(name: str) -> Run:
    """The name of a tier in its colour."""
    return Run(f"{name:<{TIER_WIDTH}}", f"tier-{name}")


def tier_bar(name: TierName, share: float, width: int, symbols: GraphSymbols) -> Line:
    """A bar in the tier's colour."""
    styles = {"bar-used": f"tier-{name}"}
    return tuple(
        Run(run.text, styles.get(run.style, run.style)) for run in bar(share, width, symbols)
    )


def reuse_line(counts: CacheCounts) -> Line:
    """Prompts that saved states helped, and the time saved: `14 restored, 2 missed, +12 s saved`.

    A dash if no prefill was timed.
    """
    line = labelled("reuse", f"{fmt.count(counts.n_hits)} restored")
    line = (*line, Run(f", {fmt.count(counts.n_misses)} missed"))
    saved_s = counts.saved_s
    if not counts.n_hits:
        return line
    if saved_s is not None and saved_s < 0:
        return (*line, Run(", "), Run(fmt.seconds(-saved_s), "bad"), Run(" lost"))
    saved = Run(fmt.gain(saved_s), "" if saved_s is None else "good")
    return (*line, Run(", "), saved, Run(" saved"))


def _moves(counts: CacheCounts) -> Run:
    moves = fmt.listed(
        (counts.n_refused, "refused"),
        (counts.n_promotions, "promoted"),
        (counts.n_demotions, "demoted"),
        (counts.n_evictions, "evicted"),
        (counts.n_prefetches, "prefetched"),
    )
    return Run(moves or "none", "bad" if counts.n_refused else "")


def _tokens(counts: CacheCounts) -> str:
    """Counts of all prompt tokens by their origin: a tier or a prefill."""
    parts = (
        (counts.n_hot_tokens, "hot"),
        (counts.n_warm_tokens, "warm"),
        (counts.n_cold_tokens, "cold"),
        (counts.n_computed_tokens, "computed"),
    )
    return ", ".join(f"{fmt.tokens(n)} {name}" for n, name in parts if n) or fmt.NO_VALUE


def note_line(note: CacheNote) -> Line:
    """A line of the log; a problem has a sign and a colour."""
    when = fmt.moment(note.at)
    clock = fmt.NO_VALUE if when is None else when.strftime("%H:%M:%S")
    text = visible(note.text.replace("\n", " "))
    return (
        Run(clock, "muted"),
        Run(" ! " if note.is_problem else "   ", "warn"),
        Run(text, "warn" if note.is_problem else ""),
    )


# --- a server's own counters ---


def server_lines(snapshot: CockpitSnapshot, panel: str, width: int) -> list[Line]:
    """A server's own counters that belong to a panel, and those that it does not report."""
    texts = [visible(figure.text) for figure in snapshot.server if figure.panel == panel]
    return [line for text in texts for line in wrapped((Run(text, "muted"),), width)]
