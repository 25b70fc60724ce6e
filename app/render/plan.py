"""A plan as lines: verdict, every part of each device, largest context, warnings, the table."""

import shlex
from collections.abc import Iterator, Mapping
from itertools import groupby
from textwrap import wrap

from app import format as fmt
from app.render.charts import GraphSymbols
from app.render.lines import EMPTY, Line, Run, clipped, hanging, spread, width_of, wrapped
from app.sanitize import one_line, visible
from engine.memory.terms import DeviceEstimate, Source, Term, TermKind
from engine.model.ollama import model_name
from engine.model.speeds import ModelSpeed
from engine.planning.measured import LoadedBytes
from engine.planning.planner import Plan, warnings_of
from engine.planning.speed import SpeedBound
from engine.planning.table import Cell, CostTable
from engine.planning.verdict import FitVerdict, fullest_device
from engine.planning.workers import seconds_of, traffic
from engine.policy.choice import Basis
from engine.policy.known import Standing

FREE = "free"
SHARED = "shared"
"""What GPUs hold of a main memory that theirs is a part of."""
_MARKS: dict[str, tuple[str, str]] = {
    TermKind.WEIGHTS: ("█", "W"),
    TermKind.KV: ("▓", "K"),
    TermKind.STATE: ("▒", "S"),
    TermKind.COMPUTE: ("▚", "C"),
    "draft": ("▞", "D"),
    "projector": ("▤", "P"),
    "adapters": ("▥", "A"),
    TermKind.OVERHEAD: ("░", "O"),
    SHARED: ("▧", "G"),
    FREE: ("·", "."),
}
_NAMES = {TermKind.KV: "KV cache"}
SIGNS = {Source.EXACT: "=", Source.MEASURED: "*", Source.ESTIMATED: "~"}


def mark(kind: str, symbols: GraphSymbols) -> Run:
    """The sign of a part, in its colour."""
    return Run(_MARKS[kind][symbols == "ascii"], f"mem-{kind}")


def part_name(kind: TermKind) -> str:
    """The name of a part, at most nine letters."""
    return _NAMES.get(kind, str(kind))


_LIMITS: dict[GraphSymbols, str] = {"block": "┃", "braille": "┃", "ascii": "|"}


def memory_bar(device: DeviceEstimate, width: int, symbols: GraphSymbols) -> Line:
    """The parts of a device on the scale of what is free on it.

    Where they need more than that, the bar is as long as they are, and a line through it marks the
    end of the free memory.
    """
    free_bytes = device.device.free_bytes
    scale = max(device.total_bytes + device.shared_bytes, free_bytes, 1)
    cells: list[str] = []
    filled = 0
    sizes: list[tuple[str, int]] = [(kind, device.term(kind).nbytes) for kind in TermKind]
    for kind, nbytes in (*sizes, (SHARED, device.shared_bytes)):
        filled += nbytes
        # A part that is there is seen, however small it is.
        least = len(cells) + 1 if nbytes else 0
        end = max(round(filled / scale * width), least)
        cells += [kind] * (end - len(cells))
    cells = [*cells[:width], *[FREE] * (width - len(cells))]
    if device.left_bytes >= 0:
        return _joined(cells, symbols)
    limit = min(max(round(free_bytes / scale * width), 0), width - 1)
    over = [Run(run.text, "mem-over") for run in _joined(cells[limit + 1 :], symbols)]
    return (*_joined(cells[:limit], symbols), Run(_LIMITS[symbols], "bad"), *over)


def _joined(cells: list[str], symbols: GraphSymbols) -> Line:
    runs = []
    for kind, group in groupby(cells):
        sign = mark(kind, symbols)
        runs.append(Run(sign.text * len(list(group)), sign.style))
    return tuple(runs)


CELL_WIDTH = 8
LABEL_WIDTH = 10
MAX_COLUMNS = 10
LEGEND = "✓ fits · ! tight · ✗ too large · [ ] plan"
QUALITY_LEGEND = "on text: mean KL on your text · ref: reference · ?: unknown"
QUALITY_WIDTH = 8
BASIS_STYLES = {Basis.MEASURED: "", Basis.GUESSED: "warn", Basis.UNKNOWN: "warn"}


def n_columns(width: int) -> int:
    """How many contexts have room beside the widest label and what is known of quality."""
    room = width - LABEL_WIDTH - QUALITY_WIDTH
    return max(min(room // CELL_WIDTH, MAX_COLUMNS), 1)


def table_lines(table: CostTable) -> list[Line]:
    """A row of contexts, the totals, and what the signs say; brackets are round the plan's own.

    The last column is what is known of each pair's quality on the user's text.
    """
    head = "".join(f"{fmt.context_size(n):>{CELL_WIDTH - 1}} " for n in table.contexts)
    quality = f"{'on text':>{QUALITY_WIDTH}}"
    lines: list[Line] = [(Run(f"{'':<{LABEL_WIDTH}}"), Run(f"{head}{quality}", "muted"))]
    for row in table.rows:
        label = Run(f"{row.label:<{LABEL_WIDTH}}", "muted")
        lines.append((label, *(cell_run(cell) for cell in row.cells), quality_run(row.quality)))
    return [*lines, (Run(LEGEND, "muted"),), (Run(QUALITY_LEGEND, "muted"),)]


def quality_run(standing: Standing) -> Run:
    """What is known of a pair in eight characters; a pair that fails its gates is marked."""
    style = "bad" if standing.passes is False else BASIS_STYLES[standing.basis]
    return Run(f"{standing.short:>{QUALITY_WIDTH}}", style)


def quality_line(plan: Plan) -> Line:
    """What is known of the plan's cache types on the user's text, and from where."""
    standing = plan.quality
    style = "bad" if standing.passes is False else BASIS_STYLES[standing.basis]
    label = Run("quality on your text ", "heading-minor")
    return (label, Run(str(standing.basis), style), Run(f"  {one_line(standing.text)}", "muted"))


def cell_run(cell: Cell) -> Run:
    """A cell of eight characters."""
    if cell.total_bytes is None or cell.verdict is None:
        return Run(f"{fmt.NO_VALUE:>{CELL_WIDTH - 1}} ", "muted")
    sign = VERDICT_SIGNS[cell.verdict]
    text = f"{sign.text}{fmt.short_nbytes(cell.total_bytes)}"
    if cell.is_plan:
        return Run(f"{f'[{text}]':>{CELL_WIDTH}}", f"strong {sign.style}")
    style = "" if cell.verdict is FitVerdict.FITS else sign.style
    return Run(f"{text:>{CELL_WIDTH - 1}} ", style)


SOURCES = "= exact · * dry run · ~ estimate, low–high"  # noqa: RUF001  a range


def plan_lines(
    plan: Plan,
    width: int,
    symbols: GraphSymbols,
    *,
    loaded: LoadedBytes | None = None,
    advice: Line = EMPTY,
) -> list[Line]:
    """Whether a plan fits, the largest context, and the devices.

    Args:
        plan: What to show.
        width: Cells of a line.
        symbols: Characters of the bars.
        loaded: What the engine has allocated for the same model, shown beside the plan.
        advice: What would help, in the place of the empty line before the devices.
    """
    lines = [
        *wrapped(verdict_line(plan), width),
        *wrapped(largest_context_line(plan), width),
        *(part for each in speed_lines(plan) for part in wrapped(each, width)),
        *wrapped(quality_line(plan), width),
        advice,
    ]
    for device in plan.estimate.devices:
        lines += [*device_lines(plan, device, width, symbols, loaded), EMPTY]
    lines.append((Run(SOURCES, "muted"),))
    return [clipped(runs, width) for runs in lines]


def table_section(table: CostTable, width: int) -> list[Line]:
    """The table of other types and contexts under its heading."""
    heading: Line = (Run("memory by K/V type and context", "heading-minor"),)
    return [clipped(runs, width) for runs in (heading, *table_lines(table))]


def warning_section(plan: Plan, width: int, extra: tuple[str, ...] = ()) -> list[Line]:
    """What to know before loading; nothing where there is nothing."""
    texts = (*warnings_of(plan), *extra)
    return [line for text in texts for line in warning_lines(text, width)]


def refusal_lines(title: str, text: str, width: int) -> list[Line]:
    """Why there is no plan."""
    parts = [part for row in visible(text).splitlines() for part in (wrap(row, width) or [""])]
    return [(Run(f"✗ {title}", "bad"),), EMPTY, *((Run(part),) for part in parts)]


def verdict_line(plan: Plan) -> Line:
    """Whether it fits, and by how much."""
    verdict = plan.verdict
    if verdict is FitVerdict.FITS:
        fullest = fullest_device(plan.estimate, plan.setup.margin_bytes)
        where = f" on {fullest.device.name}" if len(plan.used_devices) > 1 else ""
        left = f" · {fmt.nbytes(fullest.left_bytes)} stay free{where}"
        return (Run("✓ fits", "strong good"), Run(left, "muted"))
    text = f" · {', '.join(plan.shortages)}"
    if verdict is FitVerdict.TIGHT:
        return (Run("! tight", "strong warn"), Run(text))
    return (Run("✗ does not fit", "bad"), Run(text))


def largest_context_line(plan: Plan) -> Line:
    """The largest context that fits, and what ends it."""
    label = Run("largest context ", "heading-minor")
    if plan.max_n_ctx is None:
        margin = fmt.nbytes(plan.setup.margin_bytes)
        why = f": not even 256 tokens fit with {margin} left free"
        return (label, Run("none", "bad"), Run(why, "muted"))
    why = "limited by the training context" if plan.is_limited_by_training else "limited by memory"
    on_gpus = any(device.device.kind == "gpu" for device in plan.estimate.devices)
    if on_gpus and plan.setup.configuration.n_gpu_layers and not plan.is_limited_by_training:
        why += "; fewer GPU layers allow a larger context"
    return (label, Run(fmt.count(plan.max_n_ctx), "strong"), Run(f"  {why}", "muted"))


def speed_lines(plan: Plan) -> Iterator[Line]:
    """The most tokens per second that memory allows, then what was measured here."""
    bound = plan.bound
    if bound is not None and bound.doubt:
        yield (Run("speed unknown  ", "heading-minor"), Run(bound.doubt, "muted"))
    elif bound is not None:
        rates = dict.fromkeys(
            f"{each.bandwidth.bytes_per_s / 1e9:.3g} GB/s {each.bandwidth.basis}"
            for each in bound.reads
            if each.bandwidth is not None
        )
        full = f", {fmt.rate(bound.full_tps)} at {fmt.context_size(bound.n_ctx)} context"
        why = f"{fmt.nbytes(bound.weight_bytes)} per token at {' and '.join(rates)}"
        yield (
            Run(f"speed {'about' if bound.is_estimate else 'at most'} ", "heading-minor"),
            Run(f"{fmt.rate(bound.tps)} tok/s", "strong"),
            Run(f"{full}  bound: {why}", "muted"),
        )
    if plan.speed is not None:
        yield _measured_line(plan.speed)


def speed_text(speed: ModelSpeed | None, bound: SpeedBound | None) -> str:
    """Tokens per second in a list: `74 tok/s here`, else the bound: `≤ 310 tok/s` or `~ 310`."""
    if speed is not None:
        return f"{fmt.rate(speed.decode_tps)} tok/s here"
    if bound is None or bound.tps is None:
        return ""
    sign = fmt.ROUGH if bound.is_estimate else "\N{LESS-THAN OR EQUAL TO}"
    return f"{sign} {fmt.rate(bound.tps)} tok/s"


def _measured_line(speed: ModelSpeed) -> Line:
    """What was measured of the model here, by what, and with which settings."""
    match speed.by:
        case "chats":
            n = speed.n_replies or 0
            last = "your last reply" if n == 1 else f"median of your last {fmt.counted(n, 'reply')}"
            how = f"{last}, with varying settings and load"
        case "bench":
            how = f"by kvchat bench  {_settings(speed)}"
        case "tune":
            how = f"by kvchat tune  {_settings(speed)}"
    deep = ""
    if speed.deep_tps is not None and speed.n_deep is not None:
        deep = f", {fmt.rate(speed.deep_tps)} at {fmt.context_size(speed.n_deep)} context"
    reads = "" if speed.prompt_tps is None else f", prompts {fmt.rate(speed.prompt_tps)}"
    return (
        Run("measured here ", "heading-minor"),
        Run(f"{fmt.rate(speed.decode_tps)} tok/s", "strong"),
        Run(f"{deep}{reads}  {how}", "muted"),
    )


def _settings(speed: ModelSpeed) -> str:
    return f"preset {visible(speed.preset)}" if speed.preset else "default settings"


def warning_lines(text: str, width: int) -> list[Line]:
    """A warning, broken into lines behind its sign."""
    return hanging((Run("! ", "warn"),), (Run(one_line(text), "warn"),), width)


def heading_line(plan: Plan, width: int, note: str = "") -> Line:
    """Which model is planned, for which program and context, and what is to be said of that."""
    file, setup = plan.model.file, plan.setup
    parts = [one_line(file.architecture), file.file_type, f"for {setup.target}"]
    asked, given = setup.configuration.n_ctx, plan.estimate.n_ctx
    rounded = "" if given == asked else f" ({fmt.count(asked)} requested)"
    context = f"{f'{note} · ' if note else ''}context {fmt.count(given)}{rounded}"
    left = (Run(one_line(model_name(file.path)), "strong"), Run(f"  {' · '.join(parts)}", "muted"))
    return spread(left, (Run(context),), width)


def command_lines(plan: Plan, width: int) -> list[Line]:
    """The command of llama-server, a flag and its value never on two lines, and its workers."""
    workers = worker_lines(plan, width)
    heading = "as a llama-server command" if plan.setup.target == "kvchat" else "command"
    lines: list[Line] = [
        (Run(heading, "heading-minor"),),
        (Run("llama-server", "strong"), Run(" \\", "muted")),
    ]
    current = ""
    for group in map(visible, _flags(plan.arguments)):
        if current and len(current) + len(group) + 3 > width - 2:
            lines.append((Run(f"  {current}"), Run(" \\", "muted")))
            current = ""
        current = f"{current} {group}".strip()
    return [*workers, *lines, (Run(f"  {current}"),)]


def worker_lines(plan: Plan, width: int) -> list[Line]:
    """The command of each worker and what goes over the net; nothing where there is no worker."""
    machine = plan.setup.machine
    if not machine.workers:
        return []
    safe = "only on a private network: anyone who can reach a worker can use it"
    lines: list[Line] = [(Run("start the workers ", "heading-minor"), Run(safe, "muted"))]
    host_width = max(width_of((Run(each.host),)) for each in machine.workers)
    lines += [
        (Run(f"  {each.host:<{host_width}}  ", "strong"), Run(each.command()))
        for each in machine.workers
    ]
    sent = traffic(plan.model, plan.estimate)
    if sent is not None:
        token_s, gbps = sent.token_s(machine.net_gbps), machine.net_gbps
        load, prompt = (
            fmt.short_seconds(seconds_of(nbytes, gbps))
            for nbytes in (sent.load_bytes, 1000 * sent.prompt_bytes)
        )
        text = (
            f"traffic: {fmt.nbytes(sent.token_bytes)} per decoded token ({1000 * token_s:.2g} ms "
            f"at {gbps:g} Gbit/s, plus {fmt.counted(sent.n_waits, 'network delay')}, so at most "
            f"{fmt.rate(1 / token_s)} tok/s); {fmt.nbytes(1000 * sent.prompt_bytes)} per 1,000 "
            f"prompt tokens ({prompt}); {fmt.nbytes(sent.load_bytes)} once, to load the weights "
            f"({load})"
        )
        lines += hanging((Run("network ", "heading-minor"),), (Run(text),), width)
    return [*(clipped(line, width) for line in lines), EMPTY]


def _flags(arguments: list[str]) -> list[str]:
    """Each flag with its value."""
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(argument)
    return [shlex.join(group) for group in groups]


NAME_WIDTH = 11
SIZE_WIDTH = 9
SOURCE_WIDTH = 19
LOADED_WIDTH = 9
WIDE = NAME_WIDTH + SIZE_WIDTH + 2 + SOURCE_WIDTH + LOADED_WIDTH
"""From this width on, planned, source and loaded have room beside each other."""
NARROW = 60
"""Under this width a device's name needs the room of a word."""
LEAST_NOTE = 20
"""Cells that a note needs at least: less says nothing."""
VERDICT_SIGNS: dict[FitVerdict, Run] = {
    FitVerdict.FITS: Run("✓", "good"),
    FitVerdict.TIGHT: Run("!", "warn"),
    FitVerdict.NO: Run("✗", "bad"),
}


def device_lines(
    plan: Plan,
    device: DeviceEstimate,
    width: int,
    symbols: GraphSymbols,
    loaded: LoadedBytes | None = None,
) -> list[Line]:
    """A device's name and sum, its bar, and a row for each part; one line where it holds none."""
    name = Run(device.device.name, "heading-minor")
    if not device.total_bytes:
        free = f"not used · {fmt.nbytes(device.device.free_bytes)} free"
        return [spread((name,), (Run(free, "muted"),), width)]
    sign = VERDICT_SIGNS[plan.device_verdict(device)]
    held = device.total_bytes + device.shared_bytes
    sums = f"{fmt.nbytes(held)} of {fmt.nbytes(device.device.free_bytes)}"
    sums += " free " if width >= NARROW else " "
    own = None if loaded is None else loaded.get(device.device.name)
    rows = [
        _term_line(kind, device.term(kind), width, symbols, own)
        for kind in TermKind
        if device.term(kind).nbytes or (own and own.get(kind))
    ]
    return [
        spread((name,), (Run(sums), sign), width),
        memory_bar(device, width, symbols),
        *([_headings(width)] if own is not None else []),
        *rows,
        *_shared_lines(device, symbols),
        _left_line(device, symbols),
        *([_mapped_line(device)] if device.reclaimable_bytes else []),
    ]


def source_text(term: Term) -> str:
    """The sign of the source and, of an estimate, the least and the most it may be."""
    sign = SIGNS[term.source]
    return f"{sign} {size_range(*term.bounds) if term.bounds else term.source}"


def size_range(low: int, high: int) -> str:
    """Two sizes, the unit said once where it is the same: `120-180 MiB`."""
    first, last = fmt.nbytes(low), fmt.nbytes(high)
    number, unit = first.split(" ")
    return f"{number if last.endswith(f' {unit}') else first}\N{EN DASH}{last}"


def _term_line(
    kind: TermKind,
    term: Term,
    width: int,
    symbols: GraphSymbols,
    own: Mapping[TermKind, int] | None,
) -> Line:
    is_estimate = term.source is Source.ESTIMATED
    parts = [
        mark(kind, symbols),
        Run(f" {part_name(kind):<{NAME_WIDTH - 2}}"),
        Run(f"{fmt.nbytes(term.nbytes):>{SIZE_WIDTH}}  ", "strong"),
        Run(_source_cell(term, width, own), "warn" if is_estimate else "muted"),
    ]
    if own is not None:
        there = own.get(kind)
        text = fmt.NO_VALUE if there is None else fmt.nbytes(there)
        parts.append(Run(f"{text:>{LOADED_WIDTH}}"))
    note = Run(f"{' ' if own is None else '  '}{term.note}", "muted")
    room = width - width_of(tuple(parts))
    has_room = term.note and room >= min(len(note.text), LEAST_NOTE)
    return (*parts, note) if has_room else tuple(parts)


def _source_cell(term: Term, width: int, own: Mapping[TermKind, int] | None) -> str:
    if own is not None and width < WIDE:
        return f"{SIGNS[term.source]} "
    return f"{source_text(term):<{SOURCE_WIDTH}}"


def _headings(width: int) -> Line:
    source = 2 if width < WIDE else SOURCE_WIDTH
    text = f"{'planned':>{NAME_WIDTH + SIZE_WIDTH}}  {'':<{source}}{'loaded':>{LOADED_WIDTH}}"
    return (Run(text, "muted"),)


def _shared_lines(device: DeviceEstimate, symbols: GraphSymbols) -> list[Line]:
    """What lies on the GPUs that have no memory of their own."""
    if not device.shared_bytes:
        return []
    size = f"{fmt.nbytes(device.shared_bytes):>{SIZE_WIDTH}}  "
    name = Run(f" {'on GPU':<{NAME_WIDTH - 2}}")
    return [
        (
            mark(SHARED, symbols),
            name,
            Run(size, "strong"),
            Run("memory shared with the CPU", "muted"),
        )
    ]


def _mapped_line(device: DeviceEstimate) -> Line:
    """What a program such as `top` shows beyond the sum, and why it needs no memory."""
    nbytes = fmt.nbytes(device.reclaimable_bytes)
    name = Run(f"  {'reclaimable':<{NAME_WIDTH}} {nbytes}", "muted")
    text = (
        f"  of {fmt.nbytes(device.mapped_bytes)} mapped: the OS can free this memory, although "
        "`top` counts it as used"
    )
    return (name, Run(text, "muted"))


def _left_line(device: DeviceEstimate, symbols: GraphSymbols) -> Line:
    left = device.left_bytes
    name, style = ("left", "muted") if left >= 0 else ("lacking", "bad")
    return (
        mark(FREE, symbols),
        Run(f" {name:<{NAME_WIDTH - 2}}", style),
        Run(f"{fmt.nbytes(abs(left)):>{SIZE_WIDTH}}", style),
    )
