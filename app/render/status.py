"""The status line: model and predictor on the left, context and speed on the right."""

from app.chat.snapshot import CockpitSnapshot, Phase
from app.render import format as fmt
from app.render.lines import Line, Run, spread
from app.render.sanitize import visible

MAX_TITLE = 20
"""Characters of the title of a chat that is answered in the background."""
_SEPARATOR = Run(" · ", "muted")


def status_line(snapshot: CockpitSnapshot, width: int) -> Line:
    """One line; the right part wins where they do not fit together."""
    left = _joined([Run(text, style) for text, style in _who(snapshot)])
    right = _joined([Run(text) for text in _figures(snapshot)])
    return spread((Run(" "), *left), (*right, Run(" ")), width)


def _who(snapshot: CockpitSnapshot) -> list[tuple[str, str]]:
    name = visible(snapshot.model_name.replace("\n", " "))
    # The file's name often ends with the quantisation, which follows anyway.
    if snapshot.file_type and name.lower().endswith(snapshot.file_type.lower()):
        name = name[: -len(snapshot.file_type)].rstrip(".-_")
    elsewhere = f"answering “{short_title(snapshot.elsewhere)}”" if snapshot.elsewhere else ""
    # Before what does not change: the end is cut off where the line is short.
    parts = [
        (name, "strong"),
        (elsewhere, "accent"),
        (snapshot.file_type, ""),
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
