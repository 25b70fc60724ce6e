"""What a search found, as lines: the choice at each knob, why, and what else would fit."""

from textwrap import wrap

from app.render.lines import Line, Run
from app.render.sanitize import visible
from engine.memory.search import Found


def goal_lines(found: Found, width: int) -> list[Line]:
    """The reasons of a found configuration, and its alternatives."""
    lines: list[Line] = [(Run("found for ", "heading-minor"), Run(str(found.goal), "strong"))]
    for step in found.steps:
        lines += _item("›", step.text, width)  # noqa: RUF001  a sign of its own
    if found.alternatives:
        lines.append((Run("or", "muted"),))
    for alternative in found.alternatives:
        lines += _item("·", alternative.label, width, "muted")
    return lines


def _item(sign: str, text: str, width: int, style: str = "") -> list[Line]:
    parts = wrap(visible(text), max(width - 2, 10)) or [""]
    return [
        (Run(f"{sign if place == 0 else ' '} ", "accent"), Run(part, style))
        for place, part in enumerate(parts)
    ]
