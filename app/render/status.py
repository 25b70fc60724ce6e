"""The status line above the chat, and the facts of the loaded model in an empty chat."""

import re

from app import format as fmt
from app.chat.history import short_title
from app.chat.snapshot import CockpitSnapshot, Phase
from app.render.lines import Line, Run, spread
from app.sanitize import visible

QUANTISATION = re.compile(r"[.\-_]((?:I?Q|TQ)\d\w*|MXFP4\w*|B?F16|F32)$", re.IGNORECASE)
SHOWN_PHASES = (Phase.EMPTY, Phase.LOADING, Phase.STOPPED)


def status_line(snapshot: CockpitSnapshot, width: int) -> Line:
    """Model and activity on the left, figures on the right; the left side is clipped."""
    right = (*_joined(_figures(snapshot)), Run(" "))
    return spread((Run(" "), *_joined(_activity(snapshot))), right, width)


def model_facts(snapshot: CockpitSnapshot) -> list[str]:
    """The loaded model in an empty chat: its context, and memory as planned and measured."""
    trained = snapshot.n_ctx_train
    of = f" (training context {fmt.count(trained)})" if trained else ""
    rows = ["model    " + " · ".join(filter(None, _name_and_type(snapshot)))]
    rows.append(f"context  {fmt.count(snapshot.n_ctx)} tokens{of}")
    memory = [f"{fmt.nbytes(sum(b.nbytes for b in snapshot.buffers))}"] if snapshot.buffers else []
    memory += [f"{fmt.nbytes(snapshot.planned.buffers)} planned"] if snapshot.planned else []
    return [*rows, f"memory   {', '.join(memory)}"] if memory else rows


def _name_and_type(snapshot: CockpitSnapshot) -> tuple[str, str]:
    """The name without the quantisation that file names often end with, and the quantisation."""
    name = visible(snapshot.model_name.replace("\n", " "))
    ending = QUANTISATION.search(name)
    file_type = snapshot.file_type or (ending[1].upper() if ending else "")
    if file_type and name.lower().endswith(file_type.lower()):
        name = name[: -len(file_type)].rstrip(".-_")
    return name, file_type


def _activity(snapshot: CockpitSnapshot) -> list[Run]:
    name, file_type = _name_and_type(snapshot)
    phase = snapshot.phase.value if snapshot.phase in SHOWN_PHASES else ""
    background = snapshot.background_title
    predictor = "plain" if snapshot.predictor == "off" else snapshot.predictor
    parts = [
        # While kvchat waits for a server, the text names the server.
        Run("" if snapshot.waiting else name, "strong"),
        Run(visible(snapshot.waiting), "accent"),
        Run(phase, "bad" if snapshot.phase is Phase.STOPPED else "accent"),
        Run(f"answering “{short_title(background)}”" if background else "", "accent"),
        Run(_other_replies(snapshot), "accent"),
        Run(file_type),
        Run(predictor),
    ]
    return [part for part in parts if part.text]


def _other_replies(snapshot: CockpitSnapshot) -> str:
    """Text about running replies in chats that are not shown; empty if there are none."""
    if not snapshot.n_beside:
        return ""
    if snapshot.background_title is not None:
        return f"and {snapshot.n_beside} more"
    return f"answering {fmt.counted(snapshot.n_beside, 'other chat')}"


def _figures(snapshot: CockpitSnapshot) -> list[Run]:
    if snapshot.phase is Phase.STOPPED:
        return []
    stats = snapshot.reply
    parts = [_slots(snapshot), _prefill(snapshot)]
    if snapshot.decode_tps is not None:
        parts.append(fmt.speed(snapshot.decode_tps, snapshot.plain_spread))
    if stats.n_verified:
        speedup = fmt.measured_speedup(stats.speedup, stats.saved_s, stats.saved_error_s)
        parts.append(speedup or "")
        parts.append(f"accept {fmt.acceptance(stats.n_accepted, stats.n_verified)}")
    return [*_context(snapshot), *(Run(part) for part in parts if part)]


def _prefill(snapshot: CockpitSnapshot) -> str:
    progress, left_s = snapshot.prefill, snapshot.prefill_left_s
    if progress is None or not progress.n_total:
        return ""
    left = ""
    if left_s is not None:
        left = f", {fmt.seconds(left_s) if left_s >= 60 else f'{left_s:.0f} s'} left"
    return f"reading the prompt {fmt.percent(progress.n_done / progress.n_total)}{left}"


def _context(snapshot: CockpitSnapshot) -> list[Run]:
    """Tokens of the open chat in the context, and the tokens that the composer would add."""
    n_ctx = snapshot.cache.n_cells if snapshot.cache else snapshot.n_ctx
    if not n_ctx:
        return []
    if not snapshot.is_of_chat and snapshot.n_of_chat is None:
        return [Run(f"ctx {fmt.NO_VALUE}/{fmt.context_size(n_ctx)}")]
    n_used = snapshot.cache.n_used if snapshot.cache else 0
    mark = ""
    if snapshot.prefill is not None and snapshot.background_title is None:
        n_used = snapshot.prefill.n_done
    elif snapshot.n_of_chat is not None:
        n_used, mark = snapshot.n_of_chat, fmt.ROUGH if snapshot.n_of_chat else ""
    used = f"ctx {mark}{fmt.part_of_context(n_used, n_ctx)} {fmt.percent(n_used / n_ctx)}"
    n_written = snapshot.n_written
    if n_written == 0:
        return [Run(used)]
    added = "…" if n_written is None else fmt.tokens(n_written)
    is_over = n_used + (n_written or 0) >= n_ctx
    return [Run(f"{used} +{added} {'does not fit' if is_over else 'typed'}", "bad" * is_over)]


def _slots(snapshot: CockpitSnapshot) -> str:
    """How many of several slots hold a sequence: `slots 2/4`."""
    if snapshot.n_slots < 2 or snapshot.tiers is None:
        return ""
    hot = next((tier for tier in snapshot.tiers.tiers if tier.name == "hot"), None)
    return "" if hot is None else f"slots {hot.n_entries}/{snapshot.n_slots}"


def _joined(runs: list[Run]) -> Line:
    return tuple(part for run in runs for part in (Run(" · ", "muted"), run))[1:]
