"""A plan as lines: verdict, every part of each device, largest context, warnings, the table."""

import shlex
from collections.abc import Iterator
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

FREE, SHARED = "free", "shared"
"""Parts of a bar besides the terms; shared memory is what GPUs without their own memory use."""
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
SIGNS = {Source.EXACT: "=", Source.MEASURED: "*", Source.ESTIMATED: "~"}
SOURCES = "= exact · * dry run · ~ estimate, low–high"  # noqa: RUF001  a range


def mark(kind: str, symbols: GraphSymbols) -> Run:
    """The sign of a part, in its colour."""
    return Run(_MARKS[kind][symbols == "ascii"], f"mem-{kind}")


def memory_bar(device: DeviceEstimate, width: int, symbols: GraphSymbols) -> Line:
    """The parts of a device on the scale of its free memory.

    If the parts need more, a line through the bar marks the end of the free memory.
    """
    free_bytes = device.device.free_bytes
    scale = max(device.total_bytes + device.shared_bytes, free_bytes, 1)
    cells: list[str] = []
    filled = 0
    sizes: list[tuple[str, int]] = [(kind, device.term(kind).nbytes) for kind in TermKind]
    for kind, nbytes in (*sizes, (SHARED, device.shared_bytes)):
        filled += nbytes
        # Every part is visible, however small it is.
        end = max(round(filled / scale * width), len(cells) + 1 if nbytes else 0)
        cells += [kind] * (end - len(cells))
    cells = [*cells[:width], *[FREE] * (width - len(cells))]
    if device.left_bytes >= 0:
        return _joined(cells, symbols)
    limit = min(max(round(free_bytes / scale * width), 0), width - 1)
    over = [Run(run.text, "mem-over") for run in _joined(cells[limit + 1 :], symbols)]
    end_sign = Run("|" if symbols == "ascii" else "┃", "bad")
    return (*_joined(cells[:limit], symbols), end_sign, *over)


def _joined(cells: list[str], symbols: GraphSymbols) -> Line:
    groups = [(mark(kind, symbols), len(list(group))) for kind, group in groupby(cells)]
    return tuple(Run(sign.text * n, sign.style) for sign, n in groups)


# --- the table of K/V types and contexts ---

CELL_WIDTH = 8
LABEL_WIDTH = 10
MAX_COLUMNS = 10
LEGEND = "✓ fits · ! tight · ✗ too large · [ ] this plan"
QUALITY_LEGEND = "on text: mean KL on your text · ref: reference type · ?: not measured"
QUALITY_WIDTH = 8
BASIS_STYLES = {Basis.MEASURED: "", Basis.GUESSED: "warn", Basis.UNKNOWN: "warn"}


def n_columns(width: int) -> int:
    """Number of context columns that fit into the width."""
    return max(min((width - LABEL_WIDTH - QUALITY_WIDTH) // CELL_WIDTH, MAX_COLUMNS), 1)


def table_lines(table: CostTable) -> list[Line]:
    """Total memory by K/V type and context; brackets mark the plan, the last column the quality."""
    head = "".join(f"{fmt.context_size(n):>{CELL_WIDTH - 1}} " for n in table.contexts)
    titles = Run(f"{'':<{LABEL_WIDTH}}{head}{'on text':>{QUALITY_WIDTH}}", "muted")
    lines: list[Line] = [(titles,)]
    for row in table.rows:
        label = Run(f"{row.label:<{LABEL_WIDTH}}", "muted")
        quality = Run(f"{row.quality.short:>{QUALITY_WIDTH}}", _quality_style(row.quality))
        lines.append((label, *map(_cell_run, row.cells), quality))
    return [*lines, (Run(LEGEND, "muted"),), (Run(QUALITY_LEGEND, "muted"),)]


def _quality_style(standing: Standing) -> str:
    return "bad" if standing.passes is False else BASIS_STYLES[standing.basis]


def _cell_run(cell: Cell) -> Run:
    if cell.total_bytes is None or cell.verdict is None:
        return Run(f"{fmt.NO_VALUE:>{CELL_WIDTH - 1}} ", "muted")
    sign = VERDICT_SIGNS[cell.verdict]
    text = f"{sign.text}{fmt.short_nbytes(cell.total_bytes)}"
    if cell.is_plan:
        return Run(f"{f'[{text}]':>{CELL_WIDTH}}", f"strong {sign.style}")
    style = "" if cell.verdict is FitVerdict.FITS else sign.style
    return Run(f"{text:>{CELL_WIDTH - 1}} ", style)


def table_section(table: CostTable, width: int) -> list[Line]:
    """The table below its heading."""
    heading: Line = (Run("memory by K/V type and context", "heading-minor"),)
    return [clipped(runs, width) for runs in (heading, *table_lines(table))]


# --- verdict, context, speed, quality ---


def plan_lines(
    plan: Plan,
    width: int,
    symbols: GraphSymbols,
    *,
    loaded: LoadedBytes | None = None,
    advice: Line = EMPTY,
) -> list[Line]:
    """The verdict, the largest context, the speed, the quality, and the devices.

    Args:
        plan: The plan.
        width: Cells of a line.
        symbols: Characters of the bars.
        loaded: Bytes that the engine has allocated for the same model, shown next to the plan.
        advice: A change that helps, in place of the empty line before the devices.
    """
    lines = [
        *wrapped(verdict_line(plan), width),
        *wrapped(largest_context_line(plan), width),
        *(part for each in speed_lines(plan) for part in wrapped(each, width)),
        *wrapped(_quality_line(plan), width),
        advice,
    ]
    for device in plan.estimate.devices:
        lines += [*device_lines(plan, device, width, symbols, loaded), EMPTY]
    lines.append((Run(SOURCES, "muted"),))
    return [clipped(runs, width) for runs in lines]


def _quality_line(plan: Plan) -> Line:
    standing = plan.quality
    label = Run("quality on your text ", "heading-minor")
    basis = Run(str(standing.basis), _quality_style(standing))
    return (label, basis, Run(f"  {one_line(standing.text)}", "muted"))


def warning_section(plan: Plan, width: int, extra: tuple[str, ...] = ()) -> list[Line]:
    """Warnings about a plan."""
    texts = (*warnings_of(plan), *extra)
    return [line for text in texts for line in warning_lines(text, width)]


def refusal_lines(title: str, text: str, width: int) -> list[Line]:
    """Why there is no plan."""
    parts = [part for row in visible(text).splitlines() for part in (wrap(row, width) or [""])]
    return [(Run(f"✗ {title}", "bad"),), EMPTY, *((Run(part),) for part in parts)]


def verdict_line(plan: Plan) -> Line:
    """Whether a plan fits, and by how much."""
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
    """The largest context that fits, and what limits it."""
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
    """The bound on tokens per second, and the measured rate."""
    bound = plan.bound
    if bound is not None and bound.doubt:
        yield (Run("speed unknown  ", "heading-minor"), Run(bound.doubt, "muted"))
    elif bound is not None:
        rates = dict.fromkeys(
            f"{each.bandwidth.bytes_per_s / 1e9:.3g} GB/s {each.bandwidth.basis}"
            for each in bound.reads
            if each.bandwidth is not None
        )
        full = f", {fmt.rate(bound.full_tps)} tok/s at {fmt.context_size(bound.n_ctx)} context"
        why = f"{fmt.nbytes(bound.weight_bytes)} per token at {' and '.join(rates)}"
        yield (
            Run(f"speed {'about' if bound.is_estimate else 'at most'} ", "heading-minor"),
            Run(f"{fmt.rate(bound.tps)} tok/s", "strong"),
            Run(f"{full}  {why}", "muted"),
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
    if speed.by == "chats":
        n = speed.n_replies or 0
        last = "your last reply" if n == 1 else f"median of your last {fmt.counted(n, 'reply')}"
        how = f"{last}, with varying settings and load"
    else:
        settings = f"preset {visible(speed.preset)}" if speed.preset else "default settings"
        how = f"by kvchat {speed.by}  {settings}"
    deep = ""
    if speed.deep_tps is not None and speed.n_deep is not None:
        deep = f", {fmt.rate(speed.deep_tps)} tok/s at {fmt.context_size(speed.n_deep)} context"
    rate = "" if speed.prompt_tps is None else f", prefill {fmt.rate(speed.prompt_tps)} tok/s"
    return (
        Run("measured ", "heading-minor"),
        Run(f"{fmt.rate(speed.decode_tps)} tok/s", "strong"),
        Run(f"{deep}{rate}  {how}", "muted"),
    )


def warning_lines(text: str, width: int) -> list[Line]:
    """A warning after its sign, wrapped."""
    return hanging((Run("! ", "warn"),), (Run(one_line(text), "warn"),), width)


def heading_line(plan: Plan, width: int, note: str = "") -> Line:
    """The model, the program and the context; `note` precedes the context."""
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
    """The command of each worker and the network traffic; nothing without workers."""
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
    sent, gbps = traffic(plan.model, plan.estimate), machine.net_gbps
    if sent is not None:
        token_s, prompt_bytes = seconds_of(sent.token_bytes, gbps), 1000 * sent.prompt_bytes
        text = (
            f"traffic: {fmt.nbytes(sent.token_bytes)} per decoded token ({1000 * token_s:.2g} ms "
            f"at {gbps:g} Gbit/s, plus {fmt.counted(sent.n_waits, 'network delay')}, so at most "
            f"{fmt.rate(1 / token_s)} tok/s); {fmt.nbytes(prompt_bytes)} per 1,000 prompt tokens "
            f"({fmt.short_seconds(seconds_of(prompt_bytes, gbps))}); "
            f"{fmt.nbytes(sent.load_bytes)} once, to load the weights "
            f"({fmt.short_seconds(seconds_of(sent.load_bytes, gbps))})"
        )
        lines += hanging((Run("network ", "heading-minor"),), (Run(text),), width)
    return [*(clipped(line, width) for line in lines), EMPTY]


def _flags(arguments: list[str]) -> list[str]:
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(argument)
    return [shlex.join(group) for group in groups]


# --- a device and its parts ---

NAME_WIDTH, SIZE_WIDTH, SOURCE_WIDTH, LOADED_WIDTH = 11, 9, 19, 9
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
    """Name, sum, bar and parts of a device; one line for a device that is not used."""
    name = Run(device.device.name, "heading-minor")
    if not device.total_bytes:
        free = f"not used · {fmt.nbytes(device.device.free_bytes)} free"
        return [spread((name,), (Run(free, "muted"),), width)]
    sign = VERDICT_SIGNS[plan.device_verdict(device)]
    used = device.total_bytes + device.shared_bytes
    sums = f"{fmt.nbytes(used)} of {fmt.nbytes(device.device.free_bytes)} free "
    own = None if loaded is None else loaded.get(device.device.name)
    lines = [spread((name,), (Run(sums), sign), width), memory_bar(device, width, symbols)]
    if own is not None:
        head = f"{'planned':>{NAME_WIDTH + SIZE_WIDTH}}{'loaded':>{LOADED_WIDTH}}"
        lines.append((Run(head, "muted"),))
    for kind in TermKind:
        if device.term(kind).nbytes or (own and own.get(kind)):
            loaded_bytes = 0 if own is None else own.get(kind, 0)
            cell = "" if own is None else f"{_size(loaded_bytes):>{LOADED_WIDTH}}"
            lines.append(_term_line(kind, device.term(kind), symbols, cell))
    if device.shared_bytes:
        note = Run("  memory shared with the CPU", "muted")
        lines.append((*_sized(SHARED, "on GPU", device.shared_bytes, symbols), note))
    left = device.left_bytes
    label, style = ("left", "muted") if left >= 0 else ("lacking", "bad")
    lines.append(_sized(FREE, label, abs(left), symbols, style))
    if device.reclaimable_bytes:
        lines.append((Run(_reclaimable_text(device), "muted"),))
    return lines


def _size(nbytes: int) -> str:
    return fmt.nbytes(nbytes) if nbytes else fmt.NO_VALUE


def _sized(
    kind: str, label: str, nbytes: int, symbols: GraphSymbols, style: str = "strong"
) -> Line:
    name = Run(f" {label:<{NAME_WIDTH - 2}}", "" if style == "strong" else style)
    return (mark(kind, symbols), name, Run(f"{fmt.nbytes(nbytes):>{SIZE_WIDTH}}", style))


def _term_line(kind: TermKind, term: Term, symbols: GraphSymbols, loaded: str) -> Line:
    """A part with its size, the loaded size if there is one, its source and a note."""
    name = "KV cache" if kind is TermKind.KV else str(kind)
    style = "warn" if term.source is Source.ESTIMATED else "muted"
    return (
        *_sized(kind, name, term.nbytes, symbols),
        Run(loaded),
        Run(f"  {source_text(term):<{SOURCE_WIDTH}}", style),
        Run(f" {term.note}" if term.note else "", "muted"),
    )


def source_text(term: Term) -> str:
    """The sign of the source, and the range of an estimate."""
    return f"{SIGNS[term.source]} {size_range(*term.bounds) if term.bounds else term.source}"


def size_range(low: int, high: int) -> str:
    """Two sizes, with one unit if both have the same: `120-180 MiB`."""
    first, last = fmt.nbytes(low), fmt.nbytes(high)
    number, unit = first.split(" ")
    return f"{number if last.endswith(f' {unit}') else first}\N{EN DASH}{last}"


def _reclaimable_text(device: DeviceEstimate) -> str:
    """Pages of the model file that the system can free."""
    nbytes = fmt.nbytes(device.reclaimable_bytes)
    return (
        f"  {'reclaimable':<{NAME_WIDTH}} {nbytes}  of {fmt.nbytes(device.mapped_bytes)} mapped; "
        "the system can free it"
    )
