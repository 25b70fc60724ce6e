"""What came of a comparison: which side was faster, and whether the texts are the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from app.compare.comparison import Pair
from engine.events import Finished
from engine.speculation.divergence import first_divergence

N_WORDS = 4
"""Words that are shown before the place where texts part, and behind it."""
NEAR_ONE = 0.02
"""Ratios this near to 1 are called the same speed."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the second side was, the first one being 1."""

    ratios: tuple[float, ...]
    """Tokens a second of the second side over those of the first, a pair each."""

    @property
    def median(self) -> float:
        """The ratio in the middle."""
        return median(self.ratios)

    @property
    def is_clear(self) -> bool:
        """The pairs agree which side is faster, but for one in five that may not."""
        middle = self.median
        if abs(middle - 1) <= NEAR_ONE:
            return False
        n_against = sum((ratio - 1) * (middle - 1) < 0 for ratio in self.ratios)
        return n_against <= len(self.ratios) // 5


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two replies stop being the same."""

    token: int
    """How many tokens they share."""
    before: str
    """The last words that both have."""
    first: str
    """How the first reply goes on; empty where it ends."""
    second: str
    margin: float | None
    """By how many logits the first side's token was ahead of the next best there."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whether the texts are the same."""

    n_pairs: int
    n_same: int
    n_tokens: int
    """Tokens of the first side's last reply, the one that ends it included."""
    parting: Parting | None
    """In the newest pair that is not the same."""


def speed_of(pairs: Sequence[Pair]) -> Speed | None:
    """Give the ratios of speed, None before a pair has them."""
    ratios = [ratio for pair in pairs if (ratio := _ratio(pair)) is not None]
    return Speed(tuple(ratios)) if ratios else None


def has_drafts(pairs: Sequence[Pair]) -> bool:
    """Tell whether a drafted token was verified in any reply; without one there is no gain."""
    return any(answer.tally.n_verified for pair in pairs for answer in (pair.first, pair.second))


def identity_of(pairs: Sequence[Pair]) -> Identity | None:
    """Give whether the replies of each pair are the same, None before there is a pair."""
    if not pairs:
        return None
    partings = [parting_of(pair) for pair in pairs]
    told = [parting for parting in partings if parting is not None]
    return Identity(
        n_pairs=len(pairs),
        n_same=partings.count(None),
        n_tokens=pairs[-1].first.tally.n_emitted,
        parting=told[-1] if told else None,
    )


def parting_of(pair: Pair) -> Parting | None:
    """Give where the replies of a pair part, None where they are the same."""
    first, second = pair.first, pair.second
    token = first_divergence(_ids(first.finished), _ids(second.finished))
    if token is None:
        return None
    start = _n_shared(first.text, second.text)
    margin = first.margins[token] if token < len(first.margins) else None
    return Parting(
        token=token,
        before=" ".join(first.text[:start].split()[-N_WORDS:]),
        first=" ".join(_rest(first.text, start)),
        second=" ".join(_rest(second.text, start)),
        margin=margin,
    )


def _ratio(pair: Pair) -> float | None:
    first, second = pair.first.decode_tps, pair.second.decode_tps
    return second / first if first and second else None


def _ids(finished: Finished | None) -> tuple[int, ...]:
    return () if finished is None else finished.token_ids


def _n_shared(one: str, other: str) -> int:
    """Give the length of the common start, back to the start of a word."""
    pairs = zip(one, other, strict=False)
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    word = max(one.rfind(" ", 0, shared), one.rfind("\n", 0, shared))
    return word + 1


def _rest(text: str, start: int) -> list[str]:
    return text[start:].split(maxsplit=N_WORDS)[:N_WORDS]
