"""The parts of a device as rows: sign, name, size, where it comes from, and its range."""

from collections.abc import Mapping

from app.planning.loaded import LoadedBytes
from app.planning.plan import Plan
from app.planning.verdict import Verdict, device_verdict
from app.render import format as fmt
from app.render.gauges import GraphSymbols
from app.render.lines import Line, Run, spread, width_of
from app.render.plan_bar import memory_bar
from app.render.plan_marks import FREE, SHARED, SIGNS, mark, part_name
from engine.memory.estimate import DeviceEstimate, Source, Term, TermKind

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
VERDICT_SIGNS: dict[Verdict, Run] = {
    Verdict.FITS: Run("✓", "good"),
    Verdict.TIGHT: Run("!", "warn"),
    Verdict.NO: Run("✗", "bad"),
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
        free = f"holds nothing · {fmt.nbytes(device.device.free_bytes)} free"
        return [spread((name,), (Run(free, "muted"),), width)]
    sign = VERDICT_SIGNS[device_verdict(device, plan.setup.margin_bytes)]
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
    ]


def source_text(term: Term) -> str:
    """The sign of the source and, of an estimate, the least and the most it may be."""
    sign = SIGNS[term.source]
    if term.low_bytes is None or term.high_bytes is None:
        return f"{sign} {term.source}"
    return f"{sign} {size_range(term.low_bytes, term.high_bytes)}"


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
    return [(mark(SHARED, symbols), name, Run(size, "strong"), Run("one memory for both", "muted"))]


def _left_line(device: DeviceEstimate, symbols: GraphSymbols) -> Line:
    left = device.left_bytes
    name, style = ("left", "muted") if left >= 0 else ("lacking", "bad")
    return (
        mark(FREE, symbols),
        Run(f" {name:<{NAME_WIDTH - 2}}", style),
        Run(f"{fmt.nbytes(abs(left)):>{SIZE_WIDTH}}", style),
    )
