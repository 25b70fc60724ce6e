"""A plan as lines: verdict, largest context, devices, warnings, and the command to start it."""

import shlex
from textwrap import wrap

from app.planning.loaded import LoadedBytes
from app.planning.plan import Plan, warnings_of
from app.planning.table import CostTable
from app.planning.verdict import Verdict, device_verdict, verdict_of
from app.render import format as fmt
from app.render.gauges import GraphSymbols
from app.render.lines import EMPTY, Line, Run, clipped, spread, wrapped
from app.render.plan_table import table_lines
from app.render.plan_terms import device_lines
from app.render.sanitize import visible
from engine.memory.estimate import DeviceEstimate

SOURCES = "= exact · * dry run · ~ estimated, from–to"  # noqa: RUF001  a range


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
        advice,
    ]
    for device in plan.estimate.devices:
        lines += [*device_lines(plan, device, width, symbols, loaded), EMPTY]
    lines.append((Run(SOURCES, "muted"),))
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
    margin = plan.setup.margin_bytes
    verdict = verdict_of(plan.estimate, margin)
    if verdict is Verdict.FITS:
        least = min(plan.used_devices, key=lambda device: device.left_bytes)
        where = f" on {least.device.name}" if len(plan.used_devices) > 1 else ""
        left = f" · {fmt.nbytes(least.left_bytes)} stay free{where}"
        return (Run("✓ fits", "strong good"), Run(left, "muted"))
    short = [d for d in plan.used_devices if device_verdict(d, margin) is verdict]
    text = f" · {', '.join(_shortage(plan, device) for device in short)}"
    if verdict is Verdict.TIGHT:
        return (Run("! tight", "strong warn"), Run(text))
    return (Run("✗ does not fit", "bad"), Run(text))


def _shortage(plan: Plan, device: DeviceEstimate) -> str:
    name, left = device.device.name, device.left_bytes
    if left < 0:
        return f"{name} lacks {fmt.nbytes(-left)}"
    margin = fmt.nbytes(plan.setup.margin_bytes)
    return f"{name} keeps {fmt.nbytes(left)} of {margin} that stay free"


def largest_context_line(plan: Plan) -> Line:
    """The largest context that fits, and what ends it."""
    label = Run("largest context ", "heading-minor")
    if plan.max_n_ctx is None:
        margin = fmt.nbytes(plan.setup.margin_bytes)
        why = f": not even 256 tokens with {margin} kept free"
        return (label, Run("none", "bad"), Run(why, "muted"))
    why = "training's limit" if plan.is_limited_by_training else "memory's limit"
    return (label, Run(fmt.count(plan.max_n_ctx), "strong"), Run(f"  {why}", "muted"))


def warning_lines(text: str, width: int) -> list[Line]:
    """A warning, broken into lines behind its sign."""
    parts = wrap(visible(text), max(width - 2, 10)) or [""]
    return [
        (Run("! " if place == 0 else "  ", "warn"), Run(part, "warn"))
        for place, part in enumerate(parts)
    ]


def heading_line(plan: Plan, width: int, note: str = "") -> Line:
    """Which model is planned, for which program and context, and what is to be said of that."""
    file, setup = plan.model.file, plan.setup
    parts = [visible(file.architecture), file.file_type, f"for {setup.target}"]
    context = f"{f'{note} · ' if note else ''}context {fmt.count(plan.estimate.n_ctx)}"
    left = (Run(visible(file.path.stem), "strong"), Run(f"  {' · '.join(parts)}", "muted"))
    return spread(left, (Run(context),), width)


def command_lines(plan: Plan, width: int) -> list[Line]:
    """The command of llama-server, a flag and its value never on two lines."""
    heading = "as a command of llama-server" if plan.setup.target == "kvchat" else "command"
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
    return [*lines, (Run(f"  {current}"),)]


def _flags(arguments: list[str]) -> list[str]:
    """Join each flag with its value."""
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(argument)
    return [shlex.join(group) for group in groups]
