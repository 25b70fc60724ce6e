"""The sign, the colour and the name of every part of a device's memory."""

from app.render.gauges import GraphSymbols
from app.render.lines import Run
from engine.memory.estimate import Source, TermKind

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
STYLES = tuple(f"mem-{kind}" for kind in (*TermKind, SHARED, FREE, "over"))
"""Every style that bars and legends use."""


def mark(kind: str, symbols: GraphSymbols) -> Run:
    """The sign of a part, in its colour."""
    return Run(_MARKS[kind][symbols == "ascii"], f"mem-{kind}")


def part_name(kind: TermKind) -> str:
    """The name of a part, at most nine letters."""
    return _NAMES.get(kind, str(kind))
