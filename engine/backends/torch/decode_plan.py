"""Decode plans: queries per attention chunk, and the window of each query.

A window that the model was not trained with changes the text, so plans are only used on request.
The window depends only on a token's position, so that decode, verify and prefill agree.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.configuration import DecodePlanName


@dataclass(frozen=True, slots=True)
class Bucket:
    """The plan of the tokens from a position on."""

    start: int
    n_queries: int
    """Queries that are computed at once, whose scores are in memory."""
    window: int | None
    """Tokens that a query sees, including its own; None is all that the layer sees."""


DecodePlan = tuple[Bucket, ...]
"""Limits of attention by position: each bucket applies from its position on, the first from 0."""

AUTO: DecodePlan = (Bucket(0, 512, None), Bucket(512, 256, None), Bucket(2048, 128, 512))
"""caramba's thresholds (`decode_bucket_short`, `decode_bucket_mid`), and beyond them the chunk and
the window of its example."""


def parse_plan(name: DecodePlanName) -> DecodePlan:
    """The plan of a name such as `auto`, `128` or `128/512`."""
    if name == "auto":
        return AUTO
    n_queries, _, window = name.partition("/")
    return (Bucket(0, int(n_queries), int(window) if window else None),)


def chunks(plan: DecodePlan, start: int, n_queries: int) -> Iterator[tuple[slice, int | None]]:
    """Slices of the queries from position `start` on, each with its window."""
    at, end = start, start + n_queries
    while at < end:
        bucket = [each for each in plan if each.start <= at][-1]
        starts = [each.start for each in plan if each.start > at]
        stop = min(at + bucket.n_queries, end, *starts)
        yield slice(at - start, stop - start), bucket.window
        at = stop
