"""The arithmetic of the results: pure functions over numbers and token ids."""

import math
import random
import statistics
from collections.abc import Sequence

LOOP_TIMES = 3
LEAST_LOOP = 24
"""Tokens of repetition under which a reply does not count as a loop: lists repeat, too."""
N_RESAMPLES = 2000
CONFIDENCE = 0.95


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Give the mean for ratios, under which 2 and 1/2 cancel out; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def median(values: Sequence[float]) -> float | None:
    """Give the middle value, None of nothing."""
    return statistics.median(values) if values else None


def bootstrap_interval(
    ratios: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Give the interval in which the geometric mean lies, as far as other prompts are like these.

    The percentile bootstrap (Efron 1979, The Annals of Statistics 7(1)): prompts are drawn with
    replacement, `N_RESAMPLES` times.

    Returns:
        The lower and upper end; None with fewer than two prompts.
    """
    if len(ratios) < 2:
        return None
    rng = random.Random(seed)
    logs = [math.log(ratio) for ratio in ratios]
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(N_RESAMPLES))
    cut = (1 - confidence) / 2
    low, high = math.floor(cut * N_RESAMPLES), math.ceil((1 - cut) * N_RESAMPLES) - 1
    return math.exp(means[low]), math.exp(means[high])


def parts_at(plain: Sequence[object], other: Sequence[object]) -> int | None:
    """Give the index of the first token or character in which two replies differ, None if none.

    A reply that ends where the other goes on differs at its length.
    """
    for index, (one, two) in enumerate(zip(plain, other, strict=False)):
        if one != two:
            return index
    return None if len(plain) == len(other) else min(len(plain), len(other))


def loops(token_ids: Sequence[int]) -> bool:
    """Whether a reply ends in repeating a period `LOOP_TIMES` times, `LEAST_LOOP` tokens or more.

    Look-up is at its best there, and nobody wants that text.
    """
    for period in range(1, len(token_ids) // LOOP_TIMES + 1):
        n = max(LOOP_TIMES * period, LEAST_LOOP)
        tail = token_ids[-n:]
        if len(tail) == n and all(tail[i] == tail[i - period] for i in range(period, n)):
            return True
    return False
