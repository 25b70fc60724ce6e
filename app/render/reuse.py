"""Why a prompt was prefilled: origin of its tokens, the first difference, times."""

from collections.abc import Iterator, Mapping

from app import format as fmt
from app.chat.snapshot import CockpitSnapshot, Phase
from app.render.lines import Line, Run, field, labelled, plain
from app.sanitize import visible
from engine.events import PromptReady, ReadCause

CAUSES: Mapping[ReadCause, str] = {
    ReadCause.FIRST: "the first prompt of this chat since the model was loaded",
    ReadCause.EDITED: "a message of the chat changed",
    ReadCause.REASONING: "the chat template removes the thinking of earlier replies",
    ReadCause.TEMPLATE: "the chat template renders earlier messages differently now",
    ReadCause.TRIMMED: "old turns were dropped because the context was full",
    ReadCause.SETTINGS: "thinking was switched, or the adapters changed",
    ReadCause.EVICTED: "{n} matching tokens were evicted to free space for other states",
    ReadCause.UNCUT: "{n} matching tokens could not be reused: they are saved only as the "
    "start of longer states, and this model's states cannot be shortened",
}
RESTORED = "the start of the prompt was restored from a saved state; the rest was computed"
CONTINUES = "the prompt continues the previous one: only new tokens were computed"
UNREPORTED = "the server reports no reason for the prefill"
NO_PROMPT = "no prompt in this chat since the model was loaded"
LINE_FEED = "\N{SYMBOL FOR LINE FEED}"


def prefix_lines(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """Tokens of the last prompt by origin, and why no more were reused; progress of a prefill.

    `prefix 1,104 of 1,163: 900 hot, 204 cold, restored in 12 ms (edited)`
    """
    if snapshot.phase is Phase.PREFILL and not snapshot.server:
        n_reused = snapshot.prefill.n_reused if snapshot.prefill else None
        reused = "" if n_reused is None else f", {fmt.count(n_reused)} reused"
        return [labelled("prefix", f"reading{reused}")]
    prompt = snapshot.prompt
    if prompt is None or not prompt.n_prompt:
        return [labelled("prefix", fmt.NO_VALUE)]
    text = f"{fmt.count(prompt.n_reused)} of {fmt.count(prompt.n_prompt)}"
    origins = fmt.listed((prompt.n_hot, "hot"), (prompt.n_warm, "warm"), (prompt.n_cold, "cold"))
    text += f": {origins}" if origins else " tokens reused"
    if prompt.n_warm or prompt.n_cold:
        text += f", restored in {fmt.short_seconds(prompt.restore_s)}"
    causes = _short_causes(prompt)
    return field("prefix", (Run(text), Run(f" ({causes})" if causes else "", "muted")), width)


def reuse_lines(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """The last prompt of the open chat, and the bytes written to disk."""
    prompt = snapshot.prompt
    rows = [("prompt", (Run(NO_PROMPT, "muted"),))] if prompt is None else [*_rows(prompt)]
    report = snapshot.tiers
    if report is not None and any(t.name == "cold" and t.budget_bytes for t in report.tiers):
        nbytes = fmt.nbytes(report.counts.n_written_bytes)
        rows.append(("disk", (Run(f"{nbytes} written to disk since the model was loaded"),)))
    return [line for label, value in rows for line in field(label, value, width)]


def reuse_text(prompt: PromptReady) -> str:
    """The rows of a prompt as text, for commands."""
    return "\n".join(plain(labelled(label, *value)) for label, value in _rows(prompt))


def _rows(prompt: PromptReady) -> Iterator[tuple[str, Line]]:
    yield "prompt", _counts(prompt)
    for reason in _why(prompt):
        yield "why", (reason,)
    if prompt.n_common is not None and prompt.cause is not None:
        at = f"token {fmt.count(prompt.n_common + 1)}, after "
        yield "at", (Run(at), _quoted(prompt.text_before))
        yield "was", (_quoted(prompt.old_text),)
        yield "is", (_quoted(prompt.new_text),)
    if prompt.n_reused:
        restored = f"restored in {fmt.short_seconds(prompt.restore_s)}"
        is_restored = prompt.n_warm + prompt.n_cold > 0
        took = restored if is_restored else "already in the context"
        yield "reused", _took(took, "a prefill", prompt.reused_prefill_s)
    took = f"computed in {fmt.short_seconds(prompt.elapsed_s)}"
    yield "rest", _took(took, "restoring the same number of tokens", prompt.computed_restore_s)


def _counts(prompt: PromptReady) -> Line:
    found = fmt.listed(
        (prompt.n_hot - prompt.n_copied, "from the context"),
        (prompt.n_copied, "from another slot"),
        (prompt.n_warm, "from RAM"),
        (prompt.n_cold, "from disk"),
    )
    whole = fmt.counted(prompt.n_prompt, "token")
    return (Run(f"{whole}: {found or 'nothing reused'}, {fmt.count(prompt.n_read)} computed"),)


def _quoted(text: str) -> Run:
    """A text of the prompt as one line, with signs for line ends and control characters."""
    if not text:
        return Run("the end", "muted")
    return Run(f"“{visible(text.replace(chr(10), LINE_FEED))}”", "accent")


def _why(prompt: PromptReady) -> list[Run]:
    """Reasons for computing tokens that the chat had before."""
    is_restored = prompt.cause is ReadCause.FIRST and prompt.n_reused > 0
    reasons = [Run(RESTORED)] if is_restored else []
    if prompt.cause is not None and not is_restored:
        reasons.append(Run(_cause(prompt, prompt.cause)))
    if prompt.miss_cause is not None:
        reasons.append(Run(_cause(prompt, prompt.miss_cause), "warn"))
    if prompt.note:
        reasons.append(Run(visible(prompt.note)))
    return reasons or [Run(UNREPORTED if prompt.n_common is None else CONTINUES, "muted")]


def _cause(prompt: PromptReady, cause: ReadCause) -> str:
    n_lost = (prompt.n_common or 0) - prompt.n_reused
    return CAUSES[cause].format(n=fmt.count(n_lost))


def _took(text: str, otherwise: str, seconds: float | None) -> Line:
    if seconds is None:
        return (Run(text),)
    return (Run(text), Run(f"; {otherwise} takes {fmt.short_seconds(seconds)}", "muted"))


def _short_causes(prompt: PromptReady) -> str:
    """Why no more was reused, in a few words."""
    is_first = prompt.cause is ReadCause.FIRST
    causes = [None if is_first else prompt.cause, prompt.miss_cause]
    words = [cause.value for cause in causes if cause is not None]
    return "; ".join([*words, *([visible(prompt.note)] if prompt.note else [])])
