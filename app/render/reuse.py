"""Why a prompt was read again: where its tokens came from, what differed, and what each took."""

from collections.abc import Iterable, Iterator, Mapping

from app import format as fmt
from app.chat.snapshot import CockpitSnapshot
from app.render.lines import LABEL_WIDTH, Line, Run, clipped, field, labelled, longest, plain
from app.sanitize import visible
from engine.events import PromptReady, ReadCause

CAUSES: Mapping[ReadCause, str] = {
    ReadCause.FIRST: "the first prompt of this chat since the model was loaded",
    ReadCause.EDITED: "{place} changed",
    ReadCause.REASONING: "the chat template removes the thinking of earlier replies",
    ReadCause.TEMPLATE: "the chat template renders earlier messages differently now",
    ReadCause.TRIMMED: "old turns were dropped because the context was full",
    ReadCause.SETTINGS: "a setting changed: {place}",
    ReadCause.EVICTED: "{n} matching tokens were evicted to free space for other states",
    ReadCause.UNCUT: "{n} matching tokens could not be reused: they are saved only as the "
    "start of longer states, and this model's states cannot be shortened",
}
RESTORED = "the start of the prompt was restored from a saved state; the rest was computed"
GOES_ON = "the prompt continues the previous one: only new tokens were computed"
UNTOLD = "the server reports no reason for the prefill"
NOTHING_ASKED = "no prompt in this chat since the model was loaded"
LINE_FEED = "\N{SYMBOL FOR LINE FEED}"


def prefix_line(prompt: PromptReady | None, width: int) -> Line:
    """Where a prompt came from, in the longest wording that fits, and in short why not more.

    `prefix  1,104 of 1,163: 900 hot, 204 cold, restored in 12 ms  question 2 changed`
    """
    if prompt is None or not prompt.n_prompt:
        return labelled("prefix", fmt.NO_VALUE)
    said, short = longest(_wordings(prompt), width - LABEL_WIDTH), _short(prompt)
    runs = labelled("prefix", said, *([Run(f"  {short}", "muted")] if short else []))
    return clipped(runs, width)


def prefix_lines(prompt: PromptReady | None, width: int) -> list[Line]:
    """The same in full, in as many lines as it takes."""
    if prompt is None or not prompt.n_prompt:
        return [prefix_line(prompt, width)]
    parts: list[Run] = [Run(next(iter(_wordings(prompt))))]
    if short := _short(prompt):
        parts.append(Run(f" ({short})", "muted"))
    return field("prefix", tuple(parts), width)


def reuse_lines(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """All that is known of the last prompt of the shown chat, and what was written to disk."""
    prompt = snapshot.prompt
    rows = [("prompt", (Run(NOTHING_ASKED, "muted"),))] if prompt is None else [*_rows(prompt)]
    report = snapshot.tiers
    if report is not None and any(t.name == "cold" and t.budget_bytes for t in report.tiers):
        nbytes = fmt.nbytes(report.counts.n_written_bytes)
        rows.append(("disk", (Run(f"{nbytes} written since the model was loaded"),)))
    return [line for label, value in rows for line in field(label, value, width)]


def reuse_text(prompt: PromptReady) -> str:
    """The same as plain lines, for commands."""
    return "\n".join(plain(labelled(label, *value)) for label, value in _rows(prompt))


def _rows(prompt: PromptReady) -> Iterator[tuple[str, Line]]:
    """Labels and what they name, the most telling first."""
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
    """Why tokens were read that the chat had before, each reason."""
    is_restored = prompt.cause is ReadCause.FIRST and prompt.n_reused > 0
    reasons = [Run(RESTORED)] if is_restored else []
    if prompt.cause is not None and not is_restored:
        reasons.append(Run(_cause(prompt, prompt.cause)))
    if prompt.miss_cause is not None:
        reasons.append(Run(_cause(prompt, prompt.miss_cause), "warn"))
    if prompt.note:
        reasons.append(Run(visible(prompt.note)))
    return reasons or [Run(UNTOLD if prompt.n_common is None else GOES_ON, "muted")]


def _cause(prompt: PromptReady, cause: ReadCause) -> str:
    n_lost = (prompt.n_common or 0) - prompt.n_reused
    return CAUSES[cause].format(place=prompt.changed or "an adapter", n=fmt.count(n_lost))


def _took(took: str, otherwise: str, seconds: float | None) -> Line:
    if seconds is None:
        return (Run(took),)
    return (Run(took), Run(f"; {otherwise} takes {fmt.short_seconds(seconds)}", "muted"))


def _short(prompt: PromptReady) -> str:
    """Why it was not more, in a few words."""
    words = [] if prompt.cause in (None, ReadCause.FIRST) else [prompt.cause.value]
    if prompt.cause is ReadCause.EDITED:
        words = [f"{prompt.changed} changed"]
    if prompt.miss_cause is not None:
        words.append(prompt.miss_cause.value)
    return "; ".join([*words, *([visible(prompt.note)] if prompt.note else [])])


def _wordings(prompt: PromptReady) -> Iterable[str]:
    """The same in fewer and fewer words."""
    n_reused, n_prompt = fmt.count(prompt.n_reused), fmt.count(prompt.n_prompt)
    whole, short = f"{n_reused} of {n_prompt}", f"{n_reused}/{n_prompt}"
    places = fmt.listed((prompt.n_hot, "hot"), (prompt.n_warm, "warm"), (prompt.n_cold, "cold"))
    if not places:
        yield f"reused {whole} {fmt.plural(prompt.n_prompt, 'token')}"
    elif prompt.n_warm or prompt.n_cold:
        elapsed = fmt.short_seconds(prompt.restore_s)
        yield f"{whole}: {places}, restored in {elapsed}"
        yield f"{whole}: {places}, {elapsed}"
        yield f"{short}: {places}, {elapsed}"
    if places:
        yield f"{whole}: {places}"
        yield f"{short}: {places}"
    yield whole
    yield short
