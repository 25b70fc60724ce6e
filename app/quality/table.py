"""A report of cache quality as tables for a terminal, and how far a measurement is."""

import math
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from app import format as fmt
from app.console import plain_table
from engine.policy.sentence import TEXT_NAMES, sentence
from engine.quality.laboratory import Progress as Reached
from engine.quality.records import (
    LEAST_TOKENS,
    Answers,
    Figure,
    Measurement,
    Part,
    Report,
    n_right,
)

MUTED = "dim"
STOPPED = "* was stopped before its last text: --resume goes on"
MOST_NLL = 50.0
"""Nats beyond which a perplexity is no number to show."""
MAIN = ("K/V", "loss", "95 %", "perplexity", "KL mean", "median", "p99", "p99.9", "same top")
WIDE = frozenset({"95 %", "median"})
"""Columns that a narrow terminal goes without."""
WIDE_CELLS = 104
COST = ("K/V", "bytes/token", "peak", "prefill", "tok/s", "deep", "needles", "problems")


def report_lines(report: Report, width: int) -> Iterator[RenderableType]:
    """Everything that a report says, from its subject to a sentence for each kind.

    Args:
        report: What was measured.
        width: Cells of a line.
    """
    shown = [index for index, title in enumerate(MAIN) if width >= WIDE_CELLS or title not in WIDE]
    rows = [main_row(row) for row in report.measurements]
    yield from _head(report)
    yield Text()
    yield _table(
        [MAIN[index] for index in shown], [[row[index] for index in shown] for row in rows]
    )
    yield from _parts(
        "KL mean by kind of text", report, [row.by_text for row in report.measurements]
    )
    yield from _parts(
        "KL mean by position", report, [row.by_position for row in report.measurements]
    )
    yield Text()
    yield Text(cost_title(report), style="bold")
    yield _table(COST, [cost_row(row) for row in report.measurements if row.role != "control"])
    yield Text()
    yield from (Text(line) for line in verdict_lines(report))


def subject_lines(report: Report) -> tuple[str, ...]:
    """What was measured, where and on how much text."""
    subject = report.subject
    library = "" if subject.settings.get("backend") == "torch" else "llama-cpp-python "
    settings = ", ".join(f"{name} {value}" for name, value in subject.settings.items())
    return (
        f"{subject.model} on {subject.device}, {fmt.counted(subject.n_threads, 'thread')}, "
        f"{library}{subject.build}",
        f"{fmt.counted(report.n_tokens, 'token')} of {fmt.counted(len(report.texts), 'text')}, "
        f"contexts of {subject.n_ctx:,}, batches of {subject.n_chunk}, "
        f"reference {subject.reference}; {settings}",
        f"loss and KL are nats; the control is {subject.reference} again in smaller batches: "
        "what it shows no cache type causes",
        *([] if all(row.is_complete for row in report.measurements) else [STOPPED]),
    )


def main_row(row: Measurement) -> tuple[str, ...]:
    """The cells of `MAIN`."""
    scores = row.scores
    if row.role == "reference":
        perplexity = number(math.exp(min(scores.nll.value, MOST_NLL)))
        return (_name(row), "", "", perplexity, *[""] * 5)
    return (
        _name(row),
        f"{scores.nll_delta.value:+.4f}",
        _interval(scores.nll_delta),
        f"x{scores.perplexity_ratio.value:.4f}",
        number(scores.kl_mean.value),
        number(scores.kl_median.value),
        number(scores.kl_p99.value),
        number(scores.kl_p999.value),
        f"{100 * scores.same_top.value:.2f} %",
    )


def cost_title(report: Report) -> str:
    """Where memory and speed were measured."""
    cost = next((row.cost for row in report.measurements if row.cost is not None), None)
    if cost is None:
        return "What it takes (speeds were not measured)"
    return (
        f"What it takes in a context of {cost.n_ctx:,} tokens: bytes of the cache, with the graph "
        f"at the peak; tokens/s of prefill and behind {cost.shallow_depth:,} and "
        f"{cost.deep_depth:,} tokens"
    )


def cost_row(row: Measurement) -> tuple[str, ...]:
    """The cells of `COST`."""
    cost = row.cost
    taken: tuple[str, ...] = (fmt.NO_VALUE,) * 5
    if cost is not None:
        taken = (
            f"{cost.held_per_token:,.0f}",
            f"{cost.peak_per_token:,.0f}",
            fmt.rate(cost.prefill_tps),
            fmt.rate(cost.shallow_tps),
            fmt.rate(cost.deep_tps),
        )
    return (str(row.kind), *taken, _answered(row.needle), _answered(row.reasoning))


def part_rows(report: Report, parts: Sequence[Sequence[Part]]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of the mean KL by part; kinds in the order of the report."""
    names = list(dict.fromkeys(part.name for listed in parts for part in listed))
    counts = {part.name: part.scores.n_tokens for listed in parts for part in listed}
    rows = []
    for row, listed in zip(report.measurements, parts, strict=True):
        found = {part.name: part.scores.kl_mean.value for part in listed}
        if row.role != "reference":
            cells = [number(found[name]) if name in found else fmt.NO_VALUE for name in names]
            rows.append([_name(row), *cells])
    titles = [f"{TEXT_NAMES.get(name, name)} ({fmt.tokens(counts[name])})" for name in names]
    return ["K/V", *titles], rows


def verdict_lines(report: Report) -> Iterator[str]:
    """A sentence for each kind, or why there is none."""
    if not report.allows_verdict:
        yield no_verdict(report)
        return
    yield from (f"{sentence(report, row.kind)}." for row in report.candidates if row.is_complete)


def no_verdict(report: Report) -> str:
    """Why a report of too little text has no verdict."""
    return (
        f"No verdict: {fmt.counted(report.n_tokens, 'token')} are too few to choose by, "
        f"{LEAST_TOKENS:,} are the least: name more texts."
    )


def progress_text(reached: Reached, elapsed_s: float) -> str:
    """How far it is: `42 %  about 3 min 05 s left  needles in 1024 tokens`."""
    share = reached.n_done / reached.n_total if reached.n_total else 0.0
    left_s = reached.left_s(elapsed_s)
    left = "" if left_s is None else f"about {fmt.seconds(left_s)} left  "
    return f"{100 * share:.0f} %  {left}{reached.what}"


def number(value: float) -> str:
    """Three digits that count: `0.0312`, `4.1e-06`, `12.3`."""
    if value == 0:
        return "0"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.1e}"


def _head(report: Report) -> Iterator[Text]:
    first, *others = subject_lines(report)
    yield Text(first, style="bold")
    yield from (Text(line, style=MUTED) for line in others)


def _parts(title: str, report: Report, parts: Sequence[Sequence[Part]]) -> Iterator[RenderableType]:
    titles, rows = part_rows(report, parts)
    if len(titles) > 2 and rows:
        yield Text()
        yield Text(title, style="bold")
        yield _table(titles, rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    return plain_table(titles, rows, numbers=titles[1:], header_style=MUTED)


def _name(row: Measurement) -> str:
    """`f16 control`; a kind that was not measured to its end has an `*`."""
    name = str(row.kind) if row.role != "control" else f"{row.kind} control"
    return name if row.is_complete else f"{name} *"


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{figure.low:+.4f} to {figure.high:+.4f}"


def _answered(answers: Sequence[Answers]) -> str:
    right, asked = n_right(answers)
    return f"{right}/{asked}" if asked else fmt.NO_VALUE


class MeasureProgress:
    """A bar with the time that is left; nothing where the console is no terminal."""

    def __init__(self, console: Console) -> None:
        self._start_s = time.monotonic()
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("loading the model", total=None)

    def __enter__(self) -> "MeasureProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, reached: Reached) -> None:
        """Move the bar."""
        self._bar.update(
            self._task,
            total=reached.n_total,
            completed=reached.n_done,
            description=escape(progress_text(reached, time.monotonic() - self._start_s)),
            refresh=True,
        )
