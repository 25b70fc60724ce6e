"""A selection on a painted line."""

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip


def highlighted(strip: Strip, start: int, end: int, style: Style) -> Strip:
    """The strip with a part of it (in characters, -1 is the end) in another style."""
    segments: list[Segment] = []
    position = 0
    for text, own, _ in strip:
        low = min(max(start - position, 0), len(text))
        high = len(text) if end == -1 else min(max(end - position, low), len(text))
        marked = own + style if own else style
        parts = ((text[:low], own), (text[low:high], marked), (text[high:], own))
        segments += [Segment(part, part_style) for part, part_style in parts if part]
        position += len(text)
    return Strip(segments, strip.cell_length)
