"""What a callback decoder tells."""

from dataclasses import dataclass
from enum import StrEnum

from engine.speculation.callbacks.statistics import StatisticsSummary


class EndReason(StrEnum):
    """Why decoding ended."""

    END = "end"
    """The target drew an end token; it is the last of the tokens."""
    LENGTH = "length"
    """`max_tokens` were made."""


@dataclass(frozen=True, slots=True)
class DraftMade:
    """A draft is about to be verified; empty in a plain round."""

    tokens: tuple[int, ...]
    elapsed_s: float
    reason: str
    """Why the draft has this length."""


@dataclass(frozen=True, slots=True)
class DraftVerified:
    """The target has spoken."""

    tokens: tuple[int, ...]
    """What became text: the accepted tokens and the target's own next one."""
    n_drafted: int
    n_accepted: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class DraftingStopped:
    """The draft function failed; the target goes on alone."""

    reason: str


@dataclass(frozen=True, slots=True)
class DecodingComplete:
    """Nothing follows."""

    tokens: tuple[int, ...]
    reason: EndReason
    statistics: StatisticsSummary
    """Of this and earlier calls, since the last reset."""


DecoderEvent = DraftMade | DraftVerified | DraftingStopped | DecodingComplete
