"""A benchmark's progress and report for a terminal."""

import time
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from app import format as fmt
from app.console import plain_table
from engine.experiment.gain import PairedGain, gain_of
from engine.experiment.prompts import Prompt
from engine.experiment.records import PromptRecord, Results, Subject
from engine.experiment.verdict import (
    ArmSummary,
    SetSummary,
    blocks_of,
    by_set,
    recommend,
    round_times,
    summarise,
    total_gain,
)

GOOD, BAD, MUTED = "green", "red", "dim"
COLUMNS = ("arm", "of plain", "99 %", "worst prompt", "accepted", "per round", "same text")
NUMBERS = ("of plain", "accepted", "per round")


def report(results: Results) -> Iterator[RenderableType]:
    """The report of a benchmark, from the prompt sets to the recommendation."""
    arms = results.subject.arms
    for summary in summarise(results.prompts, arms):
        yield Text()
        yield from _set(summary)
    if len(by_set(results.prompts)) > 1:
        rows = [(arm, *_gain_cells(total_gain(results.prompts, arm))) for arm in arms]
        yield Text("\nAll prompts", "bold")
        yield plain_table(COLUMNS[:3], rows, numbers=NUMBERS, header_style=MUTED)
    times = round_times(results.prompts)
    if len(times) > 1:
        yield Text("\nTime of a round by the tokens in its batch", "bold")
        titles = ("tokens", *(str(n) for n, _ in times))
        cells = ("ms", *(f"{1e3 * seconds:.1f}" for _, seconds in times))
        yield plain_table(titles, [cells], numbers=titles[1:], header_style=MUTED)
    advice = recommend(results.prompts, arms)
    yield Text.assemble("\nRecommended: ", (advice.name, "bold"), f" - {advice.reason}.")


def _set(summary: SetSummary) -> Iterator[RenderableType]:
    yield Text.assemble((summary.label, "bold"), (f"  {_facts(summary)}", MUTED))
    if summary.n_prompts:
        rows = [_row(arm) for arm in summary.arms]
        yield plain_table(COLUMNS, rows, numbers=NUMBERS, header_style=MUTED)
    for prompt, reason in summary.failures:
        yield Text(f"{prompt} failed: {reason}", BAD)


def _facts(summary: SetSummary) -> str:
    facts = [fmt.counted(summary.n_prompts, "prompt"), f"plain {fmt.rate(summary.plain_tps)} tok/s"]
    if summary.noise is not None:
        facts.append(f"noise {100 * summary.noise:.1f} %")
    if summary.n_loops:
        facts.append(f"{summary.n_loops} end in a loop (excluded)")
    if summary.n_short:
        facts.append(f"{summary.n_short} too short to time")
    return " · ".join(facts)


def _row(arm: ArmSummary) -> tuple[str | Text, ...]:
    ratio, ends = _gain_cells(arm.gain)
    per_round = fmt.NO_VALUE if arm.tokens_per_round is None else f"{arm.tokens_per_round:.2f}"
    accepted = fmt.percent(fmt.share(arm.n_accepted, arm.n_verified))
    same = f"{arm.n_same} of {arm.n_replies}"
    if arm.diverges_at is not None:
        same += f", from token {arm.diverges_at}"
    return (
        arm.arm,
        Text(ratio, _style(arm.gain)),
        ends,
        "" if arm.worst is None else f"{arm.worst[1]:.2f} {arm.worst[0]}",
        f"{accepted} of {fmt.count(arm.n_verified)}" if arm.n_verified else "no drafts",
        per_round,
        same,
    )


def _gain_cells(gain: PairedGain | None) -> tuple[str, str]:
    if gain is None:
        return fmt.NO_VALUE, ""
    return f"{gain.median:.2f}", f"{gain.low:.2f} to {gain.high:.2f}"


def _style(gain: PairedGain | None) -> str:
    """The colour of a gain or a loss beyond the noise."""
    if gain is None:
        return ""
    return GOOD if gain.is_faster else BAD if gain.reversed.is_faster else ""


def prompt_line(record: PromptRecord) -> str:
    """A prompt's result in one line: its ratio with each arm, or why it has none."""
    start = f"{record.set_name} at {record.temperature:g}  {record.prompt}: "
    if record.failure is not None:
        return f"{start}failed: {record.failure}"
    ratios = []
    for arm in dict.fromkeys(sample.arm for sample in record.rows[0] if sample.arm != "plain"):
        gain = gain_of(blocks_of(record, arm))
        assert gain is not None
        samples = (sample for row in record.rows for sample in row if sample.arm == arm)
        drafts = "" if any(sample.n_verified for sample in samples) else " (no drafts)"
        ratios.append(f"{arm} {gain.median:.2f}{drafts}")
    excluded = f" ({record.excluded}, excluded)" if record.excluded else ""
    return f"{start}{' '.join(sorted(ratios))}{excluded}"


class BenchProgress:
    """A bar on a terminal, and a line for each prompt.

    It draws between replies only: a thread that redraws would take time from the engine.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._n_replies = self._n_done = 0
        self._start_s = time.monotonic()
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def begin(self, subject: Subject, n_prompts: int, n_replies: int) -> "BenchProgress":
        """Print what is measured."""
        draft = f" with {subject.draft}" if subject.draft else ""
        self._console.print(
            f"{subject.model}{draft}: {fmt.counted(n_prompts, 'prompt')}, "
            f"{fmt.counted(len(subject.arms), 'arm')} and plain decoding, "
            f"{fmt.counted(n_replies, 'reply')} of up to {fmt.counted(subject.n_tokens, 'token')}",
            soft_wrap=True,
        )
        self._n_replies = n_replies
        self._start_s = time.monotonic()
        self._task = self._bar.add_task("warming up", total=n_replies)
        return self

    def __enter__(self) -> "BenchProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def reply_done(self, prompt: Prompt, arm: str) -> None:
        """Advance the bar."""
        self._advance(self._n_done + 1, f"{prompt.set_name} {prompt.name} · {arm}")

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        """Print the prompt's result."""
        self._n_done = n_done
        left = "" if self._console.is_terminal else f"  [{fmt.seconds(self._left_s)} left]"
        notes = (f"  {note}" for note in record.notes)
        for line in (f"{prompt_line(record)}{left}", *notes):
            self._console.print(line, markup=False, soft_wrap=True)
        self._advance(n_done, "")

    def _advance(self, n_done: int, what: str) -> None:
        self._n_done = n_done
        if self._task is not None:
            text = escape(f"about {fmt.seconds(self._left_s)} left  {what}")
            self._bar.update(self._task, completed=n_done, description=text, refresh=True)

    @property
    def _left_s(self) -> float | None:
        return time_left(time.monotonic() - self._start_s, self._n_done, self._n_replies)


def time_left(elapsed_s: float, n_done: int, n_total: int) -> float | None:
    """Seconds until the end at the pace so far; None at the start."""
    return elapsed_s / n_done * (n_total - n_done) if n_done else None
