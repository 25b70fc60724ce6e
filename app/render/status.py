"""The status line: model and predictor on the left, context and speed on the right."""

import re

from app.chat.snapshot import CockpitSnapshot, Phase
from app.render import format as fmt
from app.render.lines import Line, Run, clipped, spread, width_of
from app.render.sanitize import visible

MAX_TITLE = 20
"""Characters of the title of a chat that is answered in the background."""
MIN_NAME = 8
"""Cells of the model's name where the line is short."""
QUANTISATION = re.compile(r"[.\-_]((?:I?Q|TQ)\d\w*|MXFP4\w*|B?F16|F32)$", re.IGNORECASE)
_SEPARATOR = Run(" · ", "muted")


def status_line(snapshot: CockpitSnapshot, width: int) -> Line:
    """One line; the right part wins where they do not fit together."""
    right = (*_joined([Run(text) for text in _figures(snapshot)]), Run(" "))
    room = width - width_of(right) - 2
    left = _joined(_fitting([Run(text, style) for text, style in _who(snapshot)], room))
    return spread((Run(" "), *left), right, width)


def _fitting(parts: list[Run], room: int) -> list[Run]:
    """The parts with a shorter name, so that what is behind it can be read."""
    if not parts:
        return parts
    others = width_of(_joined([Run(""), *parts[1:]]))
    return [*clipped((parts[0],), max(room - others, MIN_NAME)), *parts[1:]]


def _name_and_type(snapshot: CockpitSnapshot) -> tuple[str, str]:
    """The model without the quantisation that the name of its file often ends with.

    What is loaded tells its own; before, the name is all there is.
    """
    name = visible(snapshot.model_name.replace("\n", " "))
    ending = QUANTISATION.search(name)
    told = snapshot.file_type or (ending[1].upper() if ending else "")
    if told and name.lower().endswith(told.lower()):
        name = name[: -len(told)].rstrip(".-_")
    return name, told


def _who(snapshot: CockpitSnapshot) -> list[tuple[str, str]]:
    name, file_type = _name_and_type(snapshot)
    elsewhere = f"answering “{short_title(snapshot.elsewhere)}”" if snapshot.elsewhere else ""
    # Before what does not change: the end is cut off where the line is short.
    parts = [
        (name, "strong"),
        (elsewhere, "accent"),
        (file_type, ""),
        (_predictor(snapshot), ""),
    ]
    if snapshot.phase in (Phase.EMPTY, Phase.LOADING, Phase.STOPPED):
        parts.append((snapshot.phase.value, "bad" if snapshot.phase is Phase.STOPPED else "accent"))
    return [part for part in parts if part[0]]


def short_title(title: str) -> str:
    """Give a title on one line and cut to a few words."""
    shown = visible(title.replace("\n", " "))
    return shown if len(shown) <= MAX_TITLE else shown[: MAX_TITLE - 1] + "…"


def _predictor(snapshot: CockpitSnapshot) -> str:
    return "plain" if snapshot.predictor == "off" else snapshot.predictor


def _figures(snapshot: CockpitSnapshot) -> list[str]:
    if snapshot.phase is Phase.STOPPED:
        return []  # an engine that is gone holds nothing, and that it is gone must be read
    tally = snapshot.reply
    parts = [_context(snapshot), _slots(snapshot), _prefill(snapshot)]
    if snapshot.decode_tps is not None:
        parts.append(fmt.speed(snapshot.decode_tps, snapshot.plain_spread))
    if tally.n_verified:
        speedup = fmt.measured_speedup(tally.speedup, tally.saved_s, tally.saved_error_s)
        parts.append(speedup or "")
        parts.append(f"accept {fmt.acceptance(tally.n_accepted, tally.n_verified)}")
    return [part for part in parts if part]


def _prefill(snapshot: CockpitSnapshot) -> str:
    progress = snapshot.prefill
    if progress is None or not progress.n_total:
        return ""
    return f"reading the prompt {fmt.percent(progress.n_done / progress.n_total)}"


def _context(snapshot: CockpitSnapshot) -> str:
    n_ctx = snapshot.cache.n_cells if snapshot.cache else snapshot.n_ctx
    if not n_ctx:
        return ""
    if not snapshot.is_of_chat:
        return f"ctx {fmt.NO_VALUE}/{fmt.context_size(n_ctx)}"
    n_used = snapshot.cache.n_used if snapshot.cache else 0
    return f"ctx {fmt.tokens(n_used)}/{fmt.context_size(n_ctx)} {fmt.percent(n_used / n_ctx)}"


def _slots(snapshot: CockpitSnapshot) -> str:
    """How many of several slots hold a line: `slots 2/4`."""
    if snapshot.n_slots < 2 or snapshot.tiers is None:
        return ""
    hot = next((tier for tier in snapshot.tiers.tiers if tier.name == "hot"), None)
    return "" if hot is None else f"slots {hot.n_entries}/{snapshot.n_slots}"


def _joined(runs: list[Run]) -> Line:
    line: list[Run] = []
    for run in runs:
        if line:
            line.append(_SEPARATOR)
        line.append(run)
    return tuple(line)
