"""One bar of a device's memory: every part has a shape and a colour of its own."""

from itertools import groupby

from app.render.gauges import GraphSymbols
from app.render.lines import Line, Run
from app.render.plan_marks import FREE, SHARED, mark
from engine.memory.estimate import DeviceEstimate, TermKind

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
