"""Frames around lines: rounded corners, a title above, a hint below."""

from app.render.lines import Line, Run, clipped, width_of


def frame_top(title: str, width: int, frame: str = "frame") -> Line:
    """The upper edge with a title."""
    return _edge("╭", "╮", title, width, frame, "frame-title")


def frame_bottom(hint: str, width: int, frame: str = "frame") -> Line:
    """The lower edge with a hint, such as that there is more below."""
    return _edge("╰", "╯", hint, width, frame, "frame-hint")


def _edge(left: str, right: str, text: str, width: int, frame: str, style: str) -> Line:
    if width < 2:
        return (Run("─" * max(width, 0), frame),)
    label = clipped((Run(f" {text} ", style),), max(width - 4, 0)) if text else ()
    rest = width - 3 - width_of(label)
    return (Run(f"{left}─", frame), *label, Run("─" * max(rest, 0) + right, frame))
