"""Decode plans: queries per attention chunk, and the window of each query.

A window that the model was not trained with changes the text, so plans are only used on request.
The window depends only on a token's position, so that decode, verify and prefill agree.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.configuration import DecodePlanName


@dataclass(frozen=True, slots=True)
class Bucket:
    """What holds for the tokens from a position on."""

    start: int
    n_queries: int
    """Queries that are computed at once: their scores are what attention needs memory for."""
    window: int | None
    """Tokens that a query sees, itself among them; None is all that the layer sees."""


AUTO = (Bucket(0, 512, None), Bucket(512, 256, None), Bucket(2048, 128, 512))
"""caramba's thresholds (`decode_bucket_short`, `decode_bucket_mid`), and after them the chunk and
the window of its example."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Buckets by position, the first from 0 on."""

    buckets: tuple[Bucket, ...]

    @classmethod
    def parse(cls, name: DecodePlanName) -> "DecodePlan":
        """The plan of a name as `EngineSettings.decode_plan` has it: `auto`, `128`, `128/512`."""
        if name == "auto":
            return cls(AUTO)
        n_queries, _, window = name.partition("/")
        return cls((Bucket(0, int(n_queries), int(window) if window else None),))

    def chunks(self, start: int, n_queries: int) -> Iterator[tuple[slice, int | None]]:
        """Queries that are computed at once, by their places from `start` on, and their window."""
        at, end = start, start + n_queries
        while at < end:
            index = max(n for n, each in enumerate(self.buckets) if each.start <= at)
            bucket = self.buckets[index]
            following = self.buckets[index + 1 :]
            stop = min(at + bucket.n_queries, end, *(each.start for each in following))
            yield slice(at - start, stop - start), bucket.window
            at = stop
