"""The batch curve, measured while a prompt is read."""

from engine.backends.base import Sequence
from engine.speculation.cost import Stopwatch
from engine.speculation.curve import BatchCurve

SIZES = (1, 1, 2, 3, 4, 6, 8, 17, 1)
"""The first one warms up and is not counted."""
N_MEASURED = sum(SIZES)


def measure_batches(sequence: Sequence, tokens: list[int], curve: BatchCurve) -> None:
    """Decode `N_MEASURED` tokens of a prompt in batches of unlike sizes and teach a curve.

    The tokens have to be decoded anyway; in small batches that takes a few plain steps longer, once
    for a machine and a model.

    Raises:
        DecodeError: the backend failed.
        DecodeAborted: the reply was cancelled.
    """
    start, watch = 0, Stopwatch()
    for index, size in enumerate(SIZES):
        watch.split()
        sequence.verify(tokens[start : start + size])
        elapsed_s = watch.split()
        start += size
        if index:
            curve.add(size, elapsed_s)
