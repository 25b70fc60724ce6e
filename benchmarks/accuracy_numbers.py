"""Figures over many rows."""

from collections.abc import Iterable
from math import ceil


def quantile(values: Iterable[float], share: float) -> float:
    """Give the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0
