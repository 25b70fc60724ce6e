"""The report of a K/V quality measurement as lines."""

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
MAX_NLL = 50.0
"""Nats beyond which a perplexity is too large to show."""


def number(value: float) -> str:
    """Three significant digits: `0.0312`, `4.1e-06`, `12.3`."""
    if value == 0:
        return "0"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.1e}"


FIGURES: tuple[tuple[str, Callable[[Scores], Figure], Callable[[float], str]], ...] = (
    ("loss", attrgetter("nll_delta"), "{:+.4f}".format),
    ("KL mean", attrgetter("kl_mean"), number),
    ("same top", attrgetter("same_top"), lambda share: f"{100 * share:.2f} %"),
    ("perplexity", attrgetter("perplexity_ratio"), "x{:.4f}".format),
    ("median", attrgetter("kl_median"), number),
    ("p99", attrgetter("kl_p99"), number),
    ("p99.9", attrgetter("kl_p999"), number),
)
"""The columns of a row, the most important first: title, value, format."""
MAIN = ("K/V", *(title for title, _, _ in FIGURES))
BOUNDED = FIGURES[:3]
"""Figures whose intervals are shown."""
COST = ("K/V", "bytes/token", "peak", "prefill", "tok/s", "deep", "needles")
INTERVALS = "95 % intervals, by bootstrap over documents"
BY_TEXT, BY_POSITION = "mean KL by kind of text", "mean KL by position"
SIGNS = {True: Run("✓ ", "good"), False: Run("✗ ", "bad"), None: Run("  ")}
Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table: heading, titles, rows."""


def report_lines(report: Report, candidates: Sequence[Candidate], width: int) -> list[Line]:
    """The whole report.

    `candidates` are its types as the gates rate them; none if there is too little text.
    """
    first, *others = subject_lines(report)
    lines = wrapped((Run(first, "strong"),), width)
    lines += [line for text in others for line in wrapped((Run(text, "muted"),), width)]
    lines += [EMPTY, *_main_table(report, candidates)]
    for title, titles, rows in _sections(report):
        head, *body = _grid(titles, rows)
        lines += [EMPTY, *wrapped((Run(title, "strong"),), width), (Run(head, "muted"),)]
        lines += [(Run(row),) for row in body]
    lines.append(EMPTY)
    lines += [line for text in verdict_lines(report) for line in wrapped((Run(text),), width)]
    return [clipped(line, width) for line in lines]


def _main_table(report: Report, candidates: Sequence[Candidate]) -> Iterator[Line]:
    """A row for each type; its sign is whether it passes the gates."""
    passes = {
        candidate.measured.kind: not candidate.objections
        for candidate in candidates
        if candidate.measured is not None and candidate.measured.is_complete
    }
    head, *rows = _grid(MAIN, list(map(_main_row, report.measurements)))
    yield SIGNS[None], Run(head, "muted")
    for row, measured in zip(rows, report.measurements, strict=True):
        is_candidate = measured.role == "candidate"
        sign = SIGNS[passes.get(measured.kind) if is_candidate else None]
        yield sign, Run(row, "" if is_candidate else "muted")


def _grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Titles and rows in columns, the first aligned left."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return [
        "  ".join((f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])))
        for row in (titles, *rows)
    ]


def _sections(report: Report) -> Iterator[Section]:
    rows = report.measurements
    bounded = [
        row for row in rows if row.role != "reference" and row.scores.kl_mean.low is not None
    ]
    if bounded:
        yield (
            INTERVALS,
            ("K/V", *(title for title, _, _ in BOUNDED)),
            list(map(_intervals, bounded)),
        )
    for title, listed in (
        (BY_TEXT, [row.by_text for row in rows]),
        (BY_POSITION, [row.by_position for row in rows]),
    ):
        titles, cells = _part_rows(report, listed)
        if len(titles) > 2 and cells:
            yield title, titles, cells
    if any(row.cost or row.needle for row in rows):
        yield cost_title(report), COST, [_cost_row(row) for row in rows if row.role != "control"]


def subject_lines(report: Report) -> tuple[str, ...]:
    """Model, machine and amount of text of a measurement."""
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


def _main_row(row: Measurement) -> tuple[str, ...]:
    """The cells of `MAIN`; of the reference, its perplexity only."""
    if row.role == "reference":
        perplexity = number(math.exp(min(row.scores.nll.value, MAX_NLL)))
        return (_name(row), *(perplexity if title == "perplexity" else "" for title in MAIN[1:]))
    return (_name(row), *(write(figure(row.scores).value) for _, figure, write in FIGURES))


def _intervals(row: Measurement) -> tuple[str, ...]:
    return (_name(row), *(_interval(figure(row.scores), write) for _, figure, write in BOUNDED))


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


def _interval(figure: Figure, write: Callable[[float], str]) -> str:
    if figure.low is None or figure.high is None:
        return fmt.NO_VALUE
    return f"{write(figure.low)} to {write(figure.high)}"


def _answered(answers: Sequence[Answers]) -> str:
    right, asked = n_right(answers)
    return f"{right}/{asked}" if asked else fmt.NO_VALUE
