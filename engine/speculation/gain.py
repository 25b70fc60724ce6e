"""Which draft length wins the most, from shares and costs."""

from collections.abc import Sequence

RESERVE = 2
"""Drafts of one token whose cost a longer draft leaves in the credit where one token pays too: with
less, a few refuted drafts end speculation where it pays, until the credit has grown again."""


SURE = 0.9
"""Share of the expected tokens that has to pay for a draft which the credit does not cover."""


def best_length(
    shares: Sequence[float],
    added_steps: Sequence[float],
    *,
    rate: float,
    credit: float,
    is_known: bool = False,
) -> int:
    """Give the length whose tokens exceed what its time would give by most, 0 where none does.

    Renewal-reward argument: among rounds of unlike length the best tokens per second come from the
    largest `tokens - rate * time`, with `rate` that best itself (Dinkelbach 1967). All lengths are
    looked at, so a kink of the costs is jumped where the other side is worth it.

    Args:
        shares: for each length the share of rounds whose guesses are all right up to there.
        added_steps: for each length the plain steps that a round takes beyond one.
        rate: tokens in the time of a plain step.
        credit: plain steps that may be lost if every guess is wrong.
        is_known: whether the shares rest on many guesses: then a draft is made without credit too
            where it pays with `SURE` of its expected tokens. Without that, credit which was spent
            on one source would keep a better one from ever earning it back.
    """
    best, best_gain, tokens, reserve = 0, 0.0, 0.0, 0.0
    if shares and added_steps and shares[0] > rate * added_steps[0]:
        reserve = RESERVE * added_steps[0]
    for length, (share, steps) in enumerate(zip(shares, added_steps, strict=False), start=1):
        tokens += share
        gain = tokens - rate * steps
        kept = 0.0 if length == 1 else reserve
        is_covered = steps + kept <= credit or (is_known and SURE * tokens > rate * steps)
        if gain > best_gain and is_covered:
            best, best_gain = length, gain
    return best
