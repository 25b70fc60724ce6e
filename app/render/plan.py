"""A plan as lines: verdict, a bar and its legend for every device, what else would fit."""

import shlex
from collections.abc import Mapping
from textwrap import wrap

from app.planning.loaded import LoadedBytes
from app.planning.plan import Plan, warnings_of
from app.planning.table import CostTable
from app.render import format as fmt
from app.render.gauges import GraphSymbols
from app.render.lines import EMPTY, Line, Run, clipped, spread, width_of
from app.render.plan_bar import FREE, mark, memory_bar
from app.render.plan_table import table_lines
from app.render.sanitize import visible
from engine.memory.estimate import DeviceEstimate, Source, Term, TermKind

NAME_WIDTH = 11
SIZE_WIDTH = 9
SOURCE_WIDTH = 12
LOADED_WIDTH = 8
LEAST_NOTE = 20
"""Cells that a note needs at least: less says nothing."""
SIGNS = {Source.EXACT: "=", Source.MEASURED: "*", Source.ESTIMATED: "~"}
NAMES: dict[TermKind, str] = {
    TermKind.WEIGHTS: "weights",
    TermKind.KV: "KV cache",
    TermKind.STATE: "state",
    TermKind.COMPUTE: "compute",
    TermKind.OVERHEAD: "overhead",
}


def plan_lines(
    plan: Plan,
    width: int,
    *,
    loaded: LoadedBytes | None = None,
    symbols: GraphSymbols = "block",
) -> list[Line]:
    """Whether a plan fits, its devices, and the largest context.

    Args:
        plan: What to show.
        width: Cells of a line.
        loaded: What the engine has allocated for the same model, shown beside the plan.
        symbols: Characters of the bars.
    """
    lines = [verdict_line(plan), EMPTY]
    for device in plan.estimate.devices:
        lines += [*device_lines(plan, device, width, loaded, symbols), EMPTY]
    lines.append(largest_context_line(plan))
    return [clipped(runs, width) for runs in lines]


def table_section(table: CostTable, width: int) -> list[Line]:
    """The table of other types and contexts under its heading."""
    heading: Line = (Run("total by KV type and context", "heading-minor"),)
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
    short = [device for device in plan.used_devices if not plan.device_fits(device)]
    if not short:
        least = min(plan.used_devices, key=lambda device: device.left_bytes)
        where = f" on {least.device.name}" if len(plan.used_devices) > 1 else ""
        left = f" · {fmt.nbytes(least.left_bytes)} stay free{where}"
        return (Run("✓ fits", "good strong"), Run(left, "muted"))
    parts = [_shortage(plan, device) for device in short]
    return (Run("✗ does not fit", "bad"), Run(f" · {', '.join(parts)}"))


def _shortage(plan: Plan, device: DeviceEstimate) -> str:
    name, left = device.device.name, device.left_bytes
    if left < 0:
        return f"{name} lacks {fmt.nbytes(-left)}"
    margin = fmt.nbytes(plan.setup.margin_bytes)
    return f"{name} keeps {fmt.nbytes(left)} of {margin} that stay free"


def device_lines(
    plan: Plan,
    device: DeviceEstimate,
    width: int,
    loaded: LoadedBytes | None = None,
    symbols: GraphSymbols = "block",
) -> list[Line]:
    """A device's name and sum, its bar, and a row for each part; one line where it holds none."""
    name = Run(device.device.name, "heading-minor")
    if not device.total_bytes:
        free = f"holds nothing · {fmt.nbytes(device.device.free_bytes)} free"
        return [spread((name,), (Run(free, "muted"),), width)]
    sign = Run("✓", "good") if plan.device_fits(device) else Run("✗", "bad")
    sums = f"{fmt.nbytes(device.total_bytes)} of {fmt.nbytes(device.device.free_bytes)} free "
    own = None if loaded is None else loaded.get(device.device.name)
    lines = [
        spread((name,), (Run(sums), sign), width),
        memory_bar(device, width, symbols),
    ]
    if own is not None:
        lines.append((Run(_columns("", "planned", "", "loaded"), "muted"),))
    lines += [
        _term_line(kind, device.term(kind), width, symbols, own)
        for kind in TermKind
        if device.term(kind).nbytes or (own and own.get(kind))
    ]
    return [*lines, _left_line(device, symbols)]


def _term_line(
    kind: TermKind,
    term: Term,
    width: int,
    symbols: GraphSymbols,
    own: Mapping[TermKind, int] | None,
) -> Line:
    source = f"{SIGNS[term.source]} {term.source}"
    note = Run(f"{' ' if own is None else '  '}{term.note}", "muted")
    parts = [
        mark(kind, symbols),
        Run(f" {NAMES[kind]:<{NAME_WIDTH - 2}}"),
        Run(f"{fmt.nbytes(term.nbytes):>{SIZE_WIDTH}}  ", "strong"),
        Run(
            f"{source:<{SOURCE_WIDTH}}", "muted" if term.source is not Source.ESTIMATED else "warn"
        ),
    ]
    if own is not None:
        there = own.get(kind)
        text = fmt.NO_VALUE if there is None else fmt.nbytes(there)
        parts.append(Run(f"{text:>{LOADED_WIDTH}}"))
    room = width - width_of(tuple(parts))
    has_room = term.note and room >= min(len(note.text), LEAST_NOTE)
    return (*parts, note) if has_room else tuple(parts)


def _left_line(device: DeviceEstimate, symbols: GraphSymbols) -> Line:
    left = device.left_bytes
    name, style = ("left", "muted") if left >= 0 else ("lacking", "bad")
    size = fmt.nbytes(abs(left))
    return (
        mark(FREE, symbols),
        Run(f" {name:<{NAME_WIDTH - 2}}", style),
        Run(f"{size:>{SIZE_WIDTH}}", style),
    )


def _columns(name: str, size: str, source: str, there: str) -> str:
    return (
        f"{name:<{NAME_WIDTH}}{size:>{SIZE_WIDTH}}  {source:<{SOURCE_WIDTH}}{there:>{LOADED_WIDTH}}"
    )


def largest_context_line(plan: Plan) -> Line:
    """The largest context that fits, and what ends it."""
    label = Run("largest context ", "heading-minor")
    if plan.max_n_ctx is None:
        return (label, Run("none fits", "bad"), Run(": even 256 tokens are too many", "muted"))
    why = "training's limit" if plan.is_limited_by_training else "memory's limit"
    return (label, Run(fmt.count(plan.max_n_ctx), "strong"), Run(f"  {why}", "muted"))


def warning_lines(text: str, width: int) -> list[Line]:
    """A warning, broken into lines behind its sign."""
    parts = wrap(visible(text), max(width - 2, 10)) or [""]
    return [
        (Run("! " if place == 0 else "  ", "warn"), Run(part, "warn"))
        for place, part in enumerate(parts)
    ]


def heading_line(plan: Plan, width: int) -> Line:
    """Which model is planned, for which program and context."""
    file, setup = plan.model.file, plan.setup
    parts = [visible(file.architecture), file.file_type, f"for {setup.target}"]
    context = f"context {fmt.count(plan.estimate.n_ctx)}"
    left = (Run(visible(file.path.stem), "strong"), Run(f"  {' · '.join(parts)}", "muted"))
    return spread(left, (Run(context),), width)


def command_lines(plan: Plan, width: int) -> list[Line]:
    """The command of llama-server, a flag and its value never on two lines."""
    lines: list[Line] = [(Run("llama-server", "heading-minor"), Run(" \\", "muted"))]
    current = ""
    for group in map(visible, _flags(plan.arguments)):
        if current and len(current) + len(group) + 3 > width - 2:
            lines.append((Run(f"  {current}"), Run(" \\", "muted")))
            current = ""
        current = f"{current} {group}".strip()
    return [*lines, (Run(f"  {current}"),)]


def _flags(arguments: list[str]) -> list[str]:
    """Join each flag with its value."""
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(argument)
    return [shlex.join(group) for group in groups]
