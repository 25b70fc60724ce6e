"""The status bar, and the panels of throughput and memory."""

import re
from collections.abc import Sequence
from itertools import groupby

from app import format as fmt
from app.chat.history import short_title
from app.chat.snapshot import CockpitSnapshot, Phase, PlannedBytes
from app.render.charts import GraphSymbols, bar, history
from app.render.lines import Line, Run, clipped, longest, spread, width_of, wrapped
from app.sanitize import visible
from engine.events import BufferSize, ThreadsChanged

LABEL_WIDTH = 13
"""Cells of the label column."""
VALUE_WIDTH = 9
"""Cells of a right-aligned value."""

MIN_NAME = 8
"""Cells of the model's name where the line is short."""
QUANTISATION = re.compile(r"[.\-_]((?:I?Q|TQ)\d\w*|MXFP4\w*|B?F16|F32)$", re.IGNORECASE)
_SEPARATOR = Run(" · ", "muted")


def row(label: str, *values: str | Run) -> Line:
    """A dimmed label and its value."""
    return (
        Run(f"{label:<{LABEL_WIDTH}}", "muted"),
        *(Run(value) if isinstance(value, str) else value for value in values),
    )


def columns(label: str, *values: str, first: str = "", rest: str = "") -> Line:
    """A row of right-aligned values; the first of them may have a style of its own."""
    styles = (first, *[rest] * (len(values) - 1))
    cells = [
        Run(f"{value:>{VALUE_WIDTH}}", style) for value, style in zip(values, styles, strict=False)
    ]
    return (Run(f"{label:<{LABEL_WIDTH}}", "muted"), *cells)


def labelled(label: str, values: list[Line]) -> list[Line]:
    """A dimmed label and a value of several lines, which stand below one another."""
    first, *others = values or [()]
    return [row(label, *first), *(row("", *other) for other in others)]


def status_line(snapshot: CockpitSnapshot, width: int) -> Line:
    """One line; the right part wins where they do not fit together."""
    right = (*_joined(_figures(snapshot)), Run(" "))
    room = width - width_of(right) - 2
    left = _joined(_fitting([Run(text, style) for text, style in _who(snapshot)], room))
    return spread((Run(" "), *left), right, width)


def _fitting(parts: list[Run], room: int) -> list[Run]:
    """The parts with a shorter name, so that what follows it can be read."""
    if not parts:
        return parts
    others = width_of(_joined([Run(""), *parts[1:]]))
    return [*clipped((parts[0],), max(room - others, MIN_NAME)), *parts[1:]]


def _name_and_type(snapshot: CockpitSnapshot) -> tuple[str, str]:
    """The model without the quantisation that the name of its file often ends with.

    What is loaded tells its own; before, the name is all there is.
    """
    name = visible(snapshot.model_name.replace("\n", " "))
    ending = QUANTISATION.search(name)
    told = snapshot.file_type or (ending[1].upper() if ending else "")
    if told and name.lower().endswith(told.lower()):
        name = name[: -len(told)].rstrip(".-_")
    return name, told


def _who(snapshot: CockpitSnapshot) -> list[tuple[str, str]]:
    name, file_type = _name_and_type(snapshot)
    elsewhere = (
        f"answering “{short_title(snapshot.background_title)}”" if snapshot.background_title else ""
    )
    # Before what does not change: the end is cut off where the line is short.
    parts = [
        ("" if snapshot.waiting else name, "strong"),  # the text names the server
        (visible(snapshot.waiting), "accent"),
        (elsewhere, "accent"),
        (_beside(snapshot), "accent"),
        (file_type, ""),
        (_predictor(snapshot), ""),
    ]
    if snapshot.phase in (Phase.EMPTY, Phase.LOADING, Phase.STOPPED):
        parts.append((snapshot.phase.value, "bad" if snapshot.phase is Phase.STOPPED else "accent"))
    return [part for part in parts if part[0]]


def model_facts(snapshot: CockpitSnapshot) -> list[str]:
    """The loaded model in an empty chat: its context, and memory as planned and measured."""
    name, file_type = _name_and_type(snapshot)
    trained = snapshot.n_ctx_train
    of = f" of {fmt.count(trained)} trained" if trained else ""
    rows = ["model    " + " · ".join(filter(None, (name, file_type)))]
    rows.append(f"context  {fmt.count(snapshot.n_ctx)} tokens{of}")
    memory = [f"{fmt.nbytes(sum(b.nbytes for b in snapshot.buffers))}"] if snapshot.buffers else []
    memory += [f"{fmt.nbytes(snapshot.planned.buffers)} planned"] if snapshot.planned else []
    return [*rows, f"memory   {', '.join(memory)}"] if memory else rows


def _beside(snapshot: CockpitSnapshot) -> str:
    """How many replies are under way whose figures are not shown."""
    n, is_elsewhere = snapshot.n_beside, snapshot.background_title is not None
    if not n:
        return ""
    return f"and {n} more" if is_elsewhere else f"answering {fmt.counted(n, 'other chat')}"


def _predictor(snapshot: CockpitSnapshot) -> str:
    return "plain" if snapshot.predictor == "off" else snapshot.predictor


def _figures(snapshot: CockpitSnapshot) -> list[Run]:
    if snapshot.phase is Phase.STOPPED:
        return []  # an engine that is gone holds nothing, and that it is gone must be read
    tally = snapshot.reply
    context = _context(snapshot)
    parts = [_slots(snapshot), _prefill(snapshot)]
    if snapshot.decode_tps is not None:
        parts.append(fmt.speed(snapshot.decode_tps, snapshot.plain_spread))
    if tally.n_verified:
        speedup = fmt.measured_speedup(tally.speedup, tally.saved_s, tally.saved_error_s)
        parts.append(speedup or "")
        parts.append(f"accept {fmt.acceptance(tally.n_accepted, tally.n_verified)}")
    return [*context, *(Run(part) for part in parts if part)]


def _prefill(snapshot: CockpitSnapshot) -> str:
    progress = snapshot.prefill
    if progress is None or not progress.n_total:
        return ""
    left = snapshot.prefill_left_s
    time_left = ""
    if left is not None:
        time_left = f", {fmt.seconds(left) if left >= 60 else f'{left:.0f} s'} left"
    return f"reading the prompt {fmt.percent(progress.n_done / progress.n_total)}{time_left}"


def _context(snapshot: CockpitSnapshot) -> list[Run]:
    """What the shown chat takes of the context, and what the composer would add to it."""
    n_ctx = snapshot.cache.n_cells if snapshot.cache else snapshot.n_ctx
    if not n_ctx:
        return []
    if not snapshot.is_of_chat and snapshot.n_of_chat is None:
        return [Run(f"ctx {fmt.NO_VALUE}/{fmt.context_size(n_ctx)}")]
    n_used = snapshot.cache.n_used if snapshot.cache else 0
    mark = ""
    if snapshot.prefill is not None and snapshot.background_title is None:
        n_used = snapshot.prefill.n_done
    elif snapshot.n_of_chat is not None:
        n_used, mark = snapshot.n_of_chat, fmt.ROUGH if snapshot.n_of_chat else ""
    used = f"ctx {mark}{fmt.part_of_context(n_used, n_ctx)} {fmt.percent(n_used / n_ctx)}"
    n_written = snapshot.n_written
    if n_written == 0:
        return [Run(used)]
    added = "…" if n_written is None else fmt.tokens(n_written)
    is_over = n_used + (n_written or 0) >= n_ctx
    return [Run(f"{used} +{added} {'does not fit' if is_over else 'typed'}", "bad" * is_over)]


def _slots(snapshot: CockpitSnapshot) -> str:
    """How many of several slots hold a line: `slots 2/4`."""
    if snapshot.n_slots < 2 or snapshot.tiers is None:
        return ""
    hot = next((tier for tier in snapshot.tiers.tiers if tier.name == "hot"), None)
    return "" if hot is None else f"slots {hot.n_entries}/{snapshot.n_slots}"


def _joined(runs: list[Run]) -> Line:
    line: list[Run] = []
    for run in runs:
        if line:
            line.append(_SEPARATOR)
        line.append(run)
    return tuple(line)


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
        _prefill_bar(snapshot, width, symbols),
        row("threads", *_threads(snapshot.threads, width - LABEL_WIDTH)),
    ]
    return [clipped(runs, width) for runs in lines]


def _threads(threads: ThreadsChanged | None, room: int) -> Line:
    """How many and why: `1  others take cores`."""
    if threads is None:
        return (Run(fmt.NO_VALUE),)
    line: Line = (Run(str(threads.n_decode), "strong"),)
    if threads.reason:
        line = (*line, Run(f"  {threads.reason}", "muted"))
    if threads.n_prefill != threads.n_decode:
        whole = (*line, Run(f"  prompts {threads.n_prefill}", "muted"))
        line = whole if width_of(whole) <= room else line
    return line


def _speed(snapshot: CockpitSnapshot) -> list[Run]:
    """Tokens a second, and how far plain steps differ where the machine is noisy."""
    if not snapshot.decode_tps:
        return [Run(fmt.NO_VALUE)]
    runs = [Run(f"{fmt.rate(snapshot.decode_tps)} tok/s", "strong")]
    if snapshot.plain_spread is not None and fmt.is_noisy(snapshot.plain_spread):
        runs.append(Run(f" noisy {fmt.plus_minus(snapshot.plain_spread)}", "warn"))
    return runs


def _prefill_bar(snapshot: CockpitSnapshot, width: int, symbols: GraphSymbols) -> Line:
    progress = snapshot.prefill
    if progress is not None and progress.n_total:
        text = f"  {fmt.count(progress.n_done)}/{fmt.count(progress.n_total)}"
        room = max(width - LABEL_WIDTH - len(text), 4)
        return row("prefill", *bar(progress.n_done / progress.n_total, room, symbols), Run(text))
    if snapshot.phase is Phase.PREFILL:
        return row("prefill", Run("…", "muted"))
    return row("prefill", fmt.seconds(snapshot.prefill_s))


def memory_lines(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """The rows of the panel.

    Args:
        snapshot: What to show.
        width: Cells inside the frame.
    """
    reclaimable = _reclaimable(snapshot)
    measured = sum(buffer.nbytes for buffer in snapshot.buffers) if snapshot.buffers else None
    stays = None if measured is None else measured - reclaimable
    of_file = f"  {fmt.nbytes(reclaimable)} reclaimable" if reclaimable else ""
    if snapshot.server:
        of_file = "  of kvchat itself"
    lines = [
        row("planned", *_planned(snapshot.planned)),
        row("measured", _size(stays), *_difference(snapshot.planned, stays)),
        row("process", _size(snapshot.process_bytes), Run(of_file, "muted")),
        _by_kind(snapshot.buffers, reclaimable, width),
    ]
    return [clipped(runs, width) for runs in lines]


def _reclaimable(snapshot: CockpitSnapshot) -> int:
    """Mapped pages that the system may take back: no plan counts them as needed."""
    is_mapped = any(buffer.is_mapped for buffer in snapshot.buffers)
    return snapshot.planned.reclaimable if snapshot.planned and is_mapped else 0


def server_lines(snapshot: CockpitSnapshot, panel: str, width: int) -> list[Line]:
    """What a server's own counters say of a panel's figures, and what it does not tell."""
    told = [figure.text for figure in snapshot.server if figure.panel == panel]
    return [line for text in told for line in wrapped((Run(visible(text), "muted"),), width)]


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


def _by_kind(buffers: tuple[BufferSize, ...], reclaimable: int, width: int) -> Line:
    """Sizes by kind, largest first; those of a draft model as one. The longest that fits."""
    named = [(b.kind if b.owner == "target" else b.owner, b.nbytes) for b in buffers]
    named = sorted([*named, ("model", -reclaimable)] if reclaimable else named)
    sums = [(name, sum(n for _, n in group)) for name, group in groupby(named, lambda b: b[0])]
    ordered = sorted(sums, key=lambda item: -item[1])
    told = [(name, nbytes) for name, nbytes in ordered if nbytes]
    long = " · ".join(f"{name} {fmt.nbytes(nbytes)}" for name, nbytes in told)
    if len(long) <= width - LABEL_WIDTH:
        return row("", Run(long, "muted"))
    shorter = (_largest(told, n) for n in range(len(told), 0, -1))
    return (Run(longest((long, *shorter), width), "muted"),)


def _largest(told: Sequence[tuple[str, int]], n: int) -> str:
    """The first `n` sizes in short, and after them the sum of the others: `KV 180M +205K`."""
    named = " · ".join(f"{name} {fmt.short_nbytes(nbytes)}" for name, nbytes in told[:n])
    others = sum(nbytes for _, nbytes in told[n:])
    return f"{named} +{fmt.short_nbytes(others)}" if others else named
