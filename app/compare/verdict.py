"""What came of a comparison: which side was faster, and whether the texts are the same."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from statistics import median

from app.compare.comparison import Answer, Comparison, Pair
from engine.events import Finished, GenerationStats
from engine.speculation.stats import first_divergence

N_WORDS = 4
"""Words that are shown before and after the point where texts diverge."""
NEAR_ONE = 0.02
"""Ratios this near to 1 are called the same speed."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the second side was, the first one being 1."""

    ratios: tuple[float, ...]
    """Tokens a second of the second side over those of the first, a pair each."""
    least: float | None = None
    """What drafts can do at most to make the second side slower: where it drafted nothing, tokens
    per round of the first one, inverted; else what its own rounds with drafts cost against plain
    steps at the worst. None where that is not known."""
    most: float | None = None
    """What drafts can do at most to make it faster: its tokens per round; None where the first side
    drafted."""

    @property
    def median(self) -> float:
        """The ratio in the middle, as it was measured."""
        return median(self.ratios)

    @property
    def possible(self) -> float:
        """As much of the median as drafts can have done."""
        ratio = self.median if self.least is None else max(self.median, self.least)
        return ratio if self.most is None else min(ratio, self.most)

    @property
    def is_noise(self) -> bool:
        """What drafts cannot have done is as much as what they can: the machine was not quiet."""
        beyond, within = abs(log(self.median / self.possible)), abs(log(self.possible))
        return beyond > log(1 + NEAR_ONE) and beyond >= within

    @property
    def is_clear(self) -> bool:
        """The pairs agree which side is faster, but for one in five that may not."""
        middle = self.median
        if self.is_noise or abs(self.possible - 1) <= NEAR_ONE:
            return False
        n_against = sum((ratio - 1) * (middle - 1) < 0 for ratio in self.ratios)
        return n_against <= len(self.ratios) // 5


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two replies stop being the same."""

    token: int
    """How many tokens they share."""
    before: str
    """The last words that both have."""
    first: str
    """How the first reply continues; empty where it ends."""
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
    divergence: Divergence | None
    """In the newest pair that is not the same."""


def speed_of(pairs: Sequence[Pair]) -> Speed | None:
    """The ratios of speed; None before a pair has them."""
    ratios = [ratio for pair in pairs if (ratio := _ratio(pair)) is not None]
    if not ratios:
        return None
    first, second = [pair.first.tally for pair in pairs], [pair.second.tally for pair in pairs]
    return Speed(
        tuple(ratios),
        least=_most_loss(first, second),
        most=_most_gain(second) if not _n_verified(first) else None,
    )


def _most_gain(tallies: Sequence[GenerationStats]) -> float | None:
    """Tokens of a round, which is what drafts gain where a batch costs no more than one token."""
    return max((each.tokens_per_round for each in tallies if each.tokens_per_round), default=None)


def _most_loss(first: Sequence[GenerationStats], second: Sequence[GenerationStats]) -> float | None:
    """The least ratio that drafts explain, those of the second side or of the first."""
    if not _n_verified(second):
        gain = _most_gain(first)
        return None if gain is None else 1 / gain
    if _n_verified(first):
        return None
    losses = [
        1.0 + (each.saved_s - each.saved_error_s) / each.decode_s
        for each in second
        if each.saved_s is not None and each.saved_error_s is not None and each.decode_s > 0
    ]
    is_known = len(losses) == sum(each.n_verified > 0 for each in second)
    return min(*losses, 1.0) if is_known and min(losses) > 0 else None


def _n_verified(tallies: Sequence[GenerationStats]) -> int:
    return sum(each.n_verified for each in tallies)


def has_drafts(pairs: Sequence[Pair]) -> bool:
    """Whether a drafted token was verified in any reply; without one there is no gain."""
    return any(_n_verified([pair.first.tally, pair.second.tally]) for pair in pairs)


def identity_of(pairs: Sequence[Pair]) -> Identity | None:
    """Whether the replies of each pair are the same; None before there is a pair."""
    if not pairs:
        return None
    divergences = [divergence_of(pair) for pair in pairs]
    told = [divergence for divergence in divergences if divergence is not None]
    return Identity(
        n_pairs=len(pairs),
        n_same=divergences.count(None),
        n_tokens=pairs[-1].first.tally.n_emitted or 0,
        divergence=told[-1] if told else None,
    )


def divergence_of(pair: Pair) -> Divergence | None:
    """Where the replies of a pair diverge; None where they are the same."""
    first, second = pair.first, pair.second
    token = first_divergence(_ids(first.finished), _ids(second.finished))
    if token is None:
        return None
    start = _n_shared(first.text, second.text)
    margin = first.margins[token] if token < len(first.margins) else None
    return Divergence(
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
    """The length of the common start, back to the start of a word."""
    pairs = zip(one, other, strict=False)
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    word = max(one.rfind(" ", 0, shared), one.rfind("\n", 0, shared))
    return word + 1


def _rest(text: str, start: int) -> list[str]:
    return text[start:].split(maxsplit=N_WORDS)[:N_WORDS]


JsonValue = dict[str, object]


def as_values(comparison: Comparison) -> JsonValue:
    """A comparison as plain values: conditions, pairs and verdict, in seconds and tokens/s."""
    speed = speed_of(comparison.pairs)
    identity = identity_of(comparison.pairs)
    return {
        "sides": [side.label for side in comparison.sides],
        "seed": comparison.request.seed,
        "max_tokens": comparison.request.max_tokens,
        "sampling": asdict(comparison.request.sampling),
        "problem": comparison.problem,
        "speed": None
        if speed is None
        else {
            "median": speed.median,
            "possible": speed.possible,
            "ratios": speed.ratios,
            "is_clear": speed.is_clear and has_drafts(comparison.pairs),
        },
        "identity": None
        if identity is None
        else {
            "n_pairs": identity.n_pairs,
            "n_same": identity.n_same,
            "n_tokens": identity.n_tokens,
            "divergence": None if identity.divergence is None else asdict(identity.divergence),
        },
        "pairs": [_pair(pair) for pair in comparison.pairs],
    }


def _pair(pair: Pair) -> JsonValue:
    divergence = divergence_of(pair)
    return {
        "first": _answer(pair.first),
        "second": _answer(pair.second),
        "divergence": None if divergence is None else asdict(divergence),
    }


def _answer(answer: Answer) -> JsonValue:
    finished = answer.finished
    return {
        "text": answer.text,
        "note": answer.note,
        "finish_reason": None if finished is None else finished.reason.value,
        "stats": None if finished is None else finished.stats.figures(),
    }


def remaining_s(comparison: Comparison) -> float | None:
    """Seconds until all pairs are done; None where no reply has a speed yet.

    After whole pairs it is expected from their times; before that it is the most that the limit
    of tokens allows.
    """
    if not comparison.is_running:
        return None
    spent = sum(answer.elapsed_s or 0.0 for answer in comparison.shown if answer is not None)
    pairs = comparison.pairs
    if pairs:
        times = [each.elapsed_s or 0.0 for pair in pairs for each in (pair.first, pair.second)]
        return max(sum(times) / len(pairs) * (comparison.n_wanted - len(pairs)) - spent, 0.0)
    speeds = [answer.decode_tps for answer in comparison.shown if answer and answer.decode_tps]
    limit = comparison.request.max_tokens
    if not speeds or limit is None:
        return None
    return max(2 * comparison.n_wanted * limit / min(speeds) - spent, 0.0)
