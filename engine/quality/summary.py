"""Figures from rows: means and percentiles with intervals, overall, by position and by text.

The intervals come from the percentile bootstrap (Efron 1979). Rows of one text are correlated, so
it draws whole documents with replacement.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from engine.configuration import MAX_COUNT, KVTypes
from engine.quality.metrics import Rows
from engine.quality.records import (
    POSITIONS,
    TEXT_KINDS,
    Answers,
    Breakdown,
    Cost,
    Figure,
    Measurement,
    Report,
    Role,
    Scores,
    Subject,
    TextFacts,
    position_name,
)
from engine.quality.texts import Document

N_DRAWS = 500
"""Bootstrap samples; the ends of an interval are then accurate to a tenth of its width."""
SEED = 1
INTERVAL = (0.025, 0.975)
QUANTILES = (0.5, 0.99, 0.999)
MAX_AT_ONCE = 1 << 24
"""Counts in memory while percentiles are bootstrapped: 64 MiB."""


def empty_report(subject: Subject, documents: Sequence[Document]) -> Report:
    """A report that starts now, with its subject and texts but no figures."""
    texts = tuple(
        TextFacts(each.name, each.kind, each.n_rows) for each in documents if not each.answers
    )
    return Report(subject, texts, datetime.now().astimezone().isoformat(timespec="seconds"))


def scores_of(rows: Sequence[Rows], *, n_draws: int = N_DRAWS) -> Scores:
    """Figures of the rows of some documents; without `n_draws` bootstrap samples no intervals."""
    filled = [each for each in rows if len(each)]
    joined = np.concatenate(filled)
    drawn: NDArray[np.int64] | None = None  # how often each document is drawn
    if len(filled) > 1 and n_draws:
        shares = np.full(len(filled), 1 / len(filled))
        drawn = np.random.default_rng(SEED).multinomial(len(filled), shares, size=n_draws)

    def mean(name: str) -> Figure:
        sums = np.array([each[name].sum(dtype=np.float64) for each in filled])
        counts = np.array([len(each) for each in filled])
        value = float(sums.sum() / counts.sum())
        return _figure(value, None if drawn is None else (drawn @ sums) / (drawn @ counts))

    median, p99, p999 = _percentiles(filled, joined["kl"].astype(np.float64), drawn)
    return Scores(
        n_tokens=len(joined),
        nll=mean("nll"),
        nll_delta=mean("delta"),
        kl_mean=mean("kl"),
        kl_median=median,
        kl_p99=p99,
        kl_p999=p999,
        same_top=mean("same_top"),
    )


def parts_by_position(
    documents: Sequence[Document], rows: Sequence[Rows], *, n_draws: int = N_DRAWS
) -> tuple[Breakdown, ...]:
    """Compute the figures of each range of positions that has rows."""
    parts = []
    for start, stop in zip(POSITIONS, (*POSITIONS[1:], MAX_COUNT), strict=True):
        inside = [
            each[max(0, start - document.first) : max(0, stop - document.first)]
            for document, each in zip(documents, rows, strict=True)
        ]
        if any(len(each) for each in inside):
            parts.append(Breakdown(position_name(start), scores_of(inside, n_draws=n_draws)))
    return tuple(parts)


def parts_by_text(
    documents: Sequence[Document], rows: Sequence[Rows], *, n_draws: int = N_DRAWS
) -> tuple[Breakdown, ...]:
    """Compute the figures of each kind of text that has rows."""
    found: dict[str, list[Rows]] = {kind: [] for kind in TEXT_KINDS}
    for document, each in zip(documents, rows, strict=True):
        if document.kind in found and len(each):
            found[document.kind].append(each)
    return tuple(
        Breakdown(kind, scores_of(inside, n_draws=n_draws))
        for kind, inside in found.items()
        if inside
    )


def answers_of(documents: Sequence[Document], rows: Sequence[Rows]) -> tuple[Answers, ...]:
    """Count correct answers by name, in the order of the documents.

    Questions with missing rows do not count.
    """
    found: dict[str, tuple[int, int]] = {}
    for document, each in zip(documents, rows, strict=True):
        before = document.first + 1
        for answer in document.answers:
            if answer.stop - before > len(each):
                break
            is_right = bool(each["is_right"][answer.start - before : answer.stop - before].all())
            n_right, n_asked = found.get(answer.name, (0, 0))
            found[answer.name] = (n_right + is_right, n_asked + 1)
    return tuple(Answers(name, *counts) for name, counts in found.items())


def measurement_of(
    kind: KVTypes,
    role: Role,
    documents: Sequence[Document],
    found: Mapping[int, Rows],
    *,
    cost: Cost | None,
) -> Measurement | None:
    """Compute all figures of one cache type; None if no row of a text was scored.

    Args:
        kind: Cache type of the rows.
        role: Its role.
        documents: Texts and questions.
        found: Rows by document index; documents may be missing or incomplete.
        cost: Memory and speed, None if not measured.
    """

    def chosen(*kinds: str) -> tuple[list[Document], list[Rows]]:
        numbers = [index for index in found if documents[index].kind in kinds]
        return [documents[index] for index in numbers], [found[index] for index in numbers]

    texts, rows = chosen(*TEXT_KINDS)
    if not any(len(each) for each in rows):
        return None
    is_whole = (len(found.get(index, ())) == each.n_rows for index, each in enumerate(documents))
    return Measurement(
        kind,
        role,
        is_complete=all(is_whole),
        scores=scores_of(rows),
        by_position=parts_by_position(texts, rows),
        by_text=parts_by_text(texts, rows),
        needle=answers_of(*chosen("needle")),
        cost=cost,
    )


def _percentiles(
    rows: Sequence[Rows], values: NDArray[np.float64], drawn: NDArray[np.int64] | None
) -> list[Figure]:
    points = [float(value) for value in np.quantile(values, QUANTILES)]
    if drawn is None:
        return [Figure(point) for point in points]
    order = np.argsort(values)
    documents = np.repeat(np.arange(len(rows)), [len(each) for each in rows])[order]
    ordered = values[order]
    found: list[list[float]] = [[] for _ in QUANTILES]
    size = max(1, MAX_AT_ONCE // len(values))
    for start in range(0, len(drawn), size):
        for counts in drawn[start : start + size][:, documents].cumsum(axis=1, dtype=np.int32):
            for values_of, quantile in zip(found, QUANTILES, strict=True):
                at = np.searchsorted(counts, quantile * counts[-1])
                values_of.append(float(ordered[min(at, len(ordered) - 1)]))
    return [_figure(point, np.array(each)) for point, each in zip(points, found, strict=True)]


def _figure(value: float, drawn: NDArray[np.float64] | None) -> Figure:
    if drawn is None:
        return Figure(value)
    low, high = np.quantile(drawn, INTERVAL)
    return Figure(value, min(float(low), value), max(float(high), value))
