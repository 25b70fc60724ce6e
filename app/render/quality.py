"""A measurement of cache kinds as lines: its tables, for commands and screens, and one kind."""

import math
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from app import format as fmt
from app.render.lines import EMPTY, Line, Run, clipped, wrapped
from engine.policy.choice import Candidate
from engine.policy.explain import TEXT_NAMES, sentence
from engine.quality.records import (
    MIN_VERDICT_TOKENS,
    Answers,
    Breakdown,
    Figure,
    Measurement,
    Report,
    Scores,
    n_right,
)

STOPPED = "* incomplete row: run the same command to measure this row again"
MOST_NLL = 50.0
"""Nats beyond which a perplexity is no number to show."""


def number(value: float) -> str:
    """Three digits that count: `0.0312`, `4.1e-06`, `12.3`."""
    if value == 0:
        return "0"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.1e}"


FIGURES: tuple[tuple[str, Callable[[Scores], Figure], Callable[[float], str]], ...] = (
    ("loss", attrgetter("nll_delta"), "{:+.4f}".format),
    ("perplexity", attrgetter("perplexity_ratio"), "x{:.4f}".format),
    ("KL mean", attrgetter("kl_mean"), number),
    ("median", attrgetter("kl_median"), number),
    ("p99", attrgetter("kl_p99"), number),
    ("p99.9", attrgetter("kl_p999"), number),
    ("same top", attrgetter("same_top"), lambda share: f"{100 * share:.2f} %"),
)
"""What a row says of a kind: its title, where it is found, and how it is spelled."""
MAIN = ("K/V", *(title for title, _, _ in FIGURES))
COST = ("K/V", "bytes/token", "peak", "prefill", "tok/s", "deep", "needles")
COLUMNS = (*MAIN, *COST[1:])
"""In the order in which they stand."""
WEIGHT = (
    "K/V", "KL mean", "same top", "loss", "bytes/token", "p99.9", "deep", "needles", "perplexity",
    "p99", "tok/s", "prefill", "peak", "median",
)  # fmt: skip
"""In the order in which they find room."""
INTERVALS = "95 % intervals, by bootstrap over documents"
BY_TEXT, BY_POSITION = "KL mean by kind of text", "KL mean by position"
GAP = 2
SIGNS = {True: Run("✓ ", "good"), False: Run("✗ ", "bad"), None: Run("  ")}


# --- a report as tables ---


def report_lines(report: Report, candidates: Sequence[Candidate], width: int) -> list[Line]:
    """Everything that a report says, from its subject to a sentence for each kind.

    Args:
        report: What was measured.
        candidates: Its kinds as the gates judge them; none where there is too little text.
        width: Cells of a line.
    """
    first, *others = subject_lines(report)
    lines = wrapped((Run(first, "strong"),), width)
    lines += [line for text in others for line in wrapped((Run(text, "muted"),), width)]
    table = QualityTable(report, candidates, MAIN)
    lines += [EMPTY, table.head(width)]
    lines += [table.line(index, width) for index in range(len(table.rows))]
    for title, titles, rows in _sections(report):
        grid = _Grid(titles, rows)
        lines += [EMPTY, *wrapped((Run(title, "strong"),), width)]
        lines += [(Run(grid.line(titles, width), "muted"),)]
        lines += [(Run(grid.line(row, width)),) for row in rows]
    lines.append(EMPTY)
    return [
        *lines,
        *(line for text in verdict_lines(report) for line in wrapped((Run(text),), width)),
    ]


def _sections(report: Report) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """The tables below the first: their titles, those of their columns, and their rows."""
    if intervals := interval_rows(report):
        yield INTERVALS, MAIN, intervals
    for title, titles, rows in part_tables(report):
        if len(titles) > 2 and rows:
            yield title, titles, rows
    if has_costs(report):
        yield cost_title(report), COST, cost_rows(report)


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
        f"loss and KL are in nats; the control row is {subject.reference} with other kernels, "
        "so its differences show the noise",
        *([] if all(row.is_complete for row in report.measurements) else [STOPPED]),
    )


def main_row(row: Measurement) -> tuple[str, ...]:
    """The cells of `MAIN`; of the reference, its perplexity."""
    if row.role == "reference":
        perplexity = number(math.exp(min(row.scores.nll.value, MOST_NLL)))
        return (_name(row), *(perplexity if title == "perplexity" else "" for title in MAIN[1:]))
    return (_name(row), *(spell(figure(row.scores).value) for _, figure, spell in FIGURES))


def interval_rows(report: Report) -> list[tuple[str, ...]]:
    """The intervals of each row's figures, in the columns of `MAIN`; none of one document."""
    return [
        (_name(row), *(_interval(figure(row.scores), spell) for _, figure, spell in FIGURES))
        for row in report.measurements
        if row.role != "reference" and row.scores.kl_mean.low is not None
    ]


def part_tables(report: Report) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The mean KL by kind of text and by position: title, titles of the columns, and rows."""
    rows = report.measurements
    yield BY_TEXT, *_part_rows(report, [row.by_text for row in rows])
    yield BY_POSITION, *_part_rows(report, [row.by_position for row in rows])


def _part_rows(
    report: Report, parts: Sequence[Sequence[Breakdown]]
) -> tuple[list[str], list[list[str]]]:
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


def has_costs(report: Report) -> bool:
    """Whether anything was asked or timed."""
    return any(row.cost or row.needle for row in report.measurements)


def cost_title(report: Report) -> str:
    """Where memory and speed were measured."""
    cost = next((row.cost for row in report.measurements if row.cost is not None), None)
    if cost is None:
        return "Cost (speeds were not measured)"
    return (
        f"Cost at a context of {cost.n_ctx:,} tokens: cache bytes per token (peak: with buffers), "
        f"tokens/s of prefill, and tokens/s of decoding at depths {cost.shallow_depth:,} and "
        f"{cost.deep_depth:,}"
    )


def cost_rows(report: Report) -> list[tuple[str, ...]]:
    """The cells of `COST` of each kind."""
    return [_cost_row(row) for row in report.measurements if row.role != "control"]


def _cost_row(row: Measurement) -> tuple[str, ...]:
    cost = row.cost
    taken: tuple[str, ...] = (fmt.NO_VALUE,) * 5
    if cost is not None:
        taken = (
            f"{cost.kv_bytes_per_token:,.0f}",
            f"{cost.peak_bytes_per_token:,.0f}",
            fmt.rate(cost.prefill_tps),
            fmt.rate(cost.shallow_tps),
            fmt.rate(cost.deep_tps),
        )
    return (str(row.kind), *taken, _answered(row.needle))


def verdict_lines(report: Report) -> Iterator[str]:
    """A sentence for each kind, or why there is none."""
    if not report.allows_verdict:
        yield no_verdict(report)
        return
    yield from (f"{sentence(report, row.kind)}." for row in report.candidates if row.is_complete)


def no_verdict(report: Report) -> str:
    """Why a report of too little text has no verdict, and what gives one."""
    n_all = sum(text.n_tokens for text in report.texts)
    if n_all >= MIN_VERDICT_TOKENS:
        return (
            f"No verdict yet: {report.n_tokens:,} of {fmt.counted(n_all, 'token')} are scored, "
            f"but a verdict needs {MIN_VERDICT_TOKENS:,}. Run the same command to continue."
        )
    return (
        f"No verdict: {fmt.counted(report.n_tokens, 'token')} were scored, but at least "
        f"{MIN_VERDICT_TOKENS:,} are needed. Add texts, or raise --tokens."
    )


def _name(row: Measurement) -> str:
    """`f16 control`; a kind that was not measured to its end has an `*`."""
    name = str(row.kind) if row.role != "control" else f"{row.kind} control"
    return name if row.is_complete else f"{name} *"


def _interval(figure: Figure, spell: Callable[[float], str]) -> str:
    if figure.low is None or figure.high is None:
        return fmt.NO_VALUE
    return f"{spell(figure.low)} to {spell(figure.high)}"


def _answered(answers: Sequence[Answers]) -> str:
    right, asked = n_right(answers)
    return f"{right}/{asked}" if asked else fmt.NO_VALUE


class _Grid:
    """Cells in columns, the first aligned left; a line has those columns that find room."""

    def __init__(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._titles = titles
        self._widths = [
            max(len(cells[index]) for cells in (titles, *rows)) for index in range(len(titles))
        ]
        order = {title: place for place, title in enumerate(WEIGHT)}
        places = range(len(titles))
        self._order = sorted(places, key=lambda place: order.get(titles[place], place))

    def line(self, cells: Sequence[str], width: int) -> str:
        """A row, or the titles, in at most `width` cells."""
        first, *others = self._shown(width)
        texts = [f"{cells[first]:<{self._widths[first]}}"]
        texts += [f"{cells[index]:>{self._widths[index]}}" for index in others]
        return (" " * GAP).join(texts)

    def _shown(self, width: int) -> list[int]:
        room, chosen = width + GAP, [0]
        for index in self._order:
            room -= self._widths[index] + GAP
            if room < 0:
                break
            chosen.append(index)
        return sorted(set(chosen))


class QualityTable:
    """The rows of a report in the columns that a width has room for."""

    def __init__(
        self, report: Report, candidates: Sequence[Candidate], titles: Sequence[str] = COLUMNS
    ) -> None:
        """The table of a report.

        Args:
            report: As far as it has come.
            candidates: Its kinds as the gates judge them; none before there is text enough.
            titles: The columns, those of `COLUMNS` or of `MAIN`.
        """
        self.rows = report.measurements
        self._kept = {
            candidate.measured.kind: not candidate.objections
            for candidate in candidates
            if candidate.measured is not None and candidate.measured.is_complete
        }
        self._titles = titles
        self._cells = [(*main_row(row), *_cost_row(row)[1:])[: len(titles)] for row in self.rows]
        self._grid = _Grid(titles, self._cells)

    def head(self, width: int) -> Line:
        """The names of the columns."""
        names = self._grid.line(self._titles, width - GAP)
        return clipped((SIGNS[None], Run(names, "muted")), width)

    def line(self, index: int, width: int) -> Line:
        """A row: its sign is whether it keeps the gates."""
        row = self.rows[index]
        sign = SIGNS[self._kept.get(row.kind) if row.role == "candidate" else None]
        style = "" if row.role == "candidate" else "muted"
        return clipped((sign, Run(self._grid.line(self._cells[index], width - GAP), style)), width)
