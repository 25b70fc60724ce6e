"""Counts and times as a server sends them, kept within what can be.

A server may send anything as a number. What passes here is finite, not negative and at most what
the reply's limit allows, so that no list of its length is long and every sum and rate is finite.
"""

from collections.abc import Mapping

MOST_TOKENS = 1 << 24
"""Tokens of a prompt or a reply."""
MOST_S = 7 * 86_400.0
"""Seconds that a server may say that it took."""
MOST_TPS = 1e6
MOST_DRAFT = 128
"""Tokens of one draft."""


def bounded(value: object, most: float) -> float:
    """A number from 0 to `most`; 0 where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(min(max(value, 0), most))


def count_of(sent: Mapping[str, object], name: str, most: int = MOST_TOKENS) -> int:
    """A count, rounded down; 0 where there is none."""
    return int(bounded(sent.get(name), most))


def seconds_of(sent: Mapping[str, object], name: str, unit_s: float) -> float:
    """A time in seconds; 0 where there is none.

    Args:
        sent: What a server sent.
        name: Of the time.
        unit_s: Seconds of the unit that it is in.
    """
    return bounded(sent.get(name), MOST_S / unit_s) * unit_s


def size_of(value: object) -> int | None:
    """A size such as a context's; None where it is none that can be."""
    return id_of(value) or None


def id_of(value: object) -> int | None:
    """A token's id; None where it is none that can be."""
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if is_id and isinstance(value, int) else None


def rate_of(n: int, elapsed_s: float) -> float | None:
    """Tokens a second; None where nothing was counted or timed."""
    return min(n / elapsed_s, MOST_TPS) if n > 0 and elapsed_s > 0 else None
