"""The batch curve, from rounds that were measured anyway."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from app.bench.records import PromptRecord

LEAST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What rounds of a size take."""

    n_rows: int
    """Tokens in the batch: the pending one and the draft."""
    seconds: float
    steps: float
    """The same in plain steps."""
    n_rounds: int


def batch_curve(records: Sequence[PromptRecord]) -> tuple[CurvePoint, ...]:
    """Give the time of a round by the tokens in its batch, the medians of the prompts weighted.

    Sizes with fewer than `LEAST_ROUNDS` rounds are left out; empty without plain rounds.
    """
    medians: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for record in records:
        for batch in record.batches:
            medians[batch.n_rows].append((batch.median_s, batch.n_rounds))
    times = {n_rows: weighted_median(samples) for n_rows, samples in medians.items()}
    plain_s = times.get(1)
    if plain_s is None:
        return ()
    counts = {n_rows: sum(n for _, n in samples) for n_rows, samples in medians.items()}
    return tuple(
        CurvePoint(n_rows, times[n_rows], times[n_rows] / plain_s, counts[n_rows])
        for n_rows in sorted(times)
        if counts[n_rows] >= LEAST_ROUNDS
    )


def weighted_median(samples: Sequence[tuple[float, int]]) -> float:
    """Give the first value at which half of the weight is reached."""
    half = sum(weight for _, weight in samples) / 2
    reached = 0
    for value, weight in sorted(samples):
        reached += weight
        if reached >= half:
            return value
    raise ValueError("there is no median of nothing")
