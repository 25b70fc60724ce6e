"""How a draft model draws a token, so that the verification can judge it."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Logits
from engine.configuration import Verification
from engine.sampling.distribution import Distribution
from engine.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Guess:
    """A token and the law it was drawn from; None where no chance of its own was used."""

    token: int
    law: Distribution | None


def guess(
    logits: Logits,
    sampler: Sampler,
    history: Tokens[int],
    *,
    round_start: int,
    position: int,
    verification: Verification,
) -> Guess:
    """Draw the token for `position` from a draft model's `[n_vocab]` logits.

    `coupled` uses the noise that the target will use for the position (Daliri et al. 2024, arXiv
    2408.07978), `match` takes the likeliest token, `rejection` and `block` draw with the dice of
    the round that starts at position `round_start`. The sampler is the target's, so draft and
    target are filtered alike.
    """
    if sampler.is_greedy or verification == "match":
        return Guess(sampler.likeliest(logits, history), None)
    if verification == "coupled":
        return Guess(sampler.sample(logits, history, position), None)
    law = sampler.distribution(logits, history)
    return Guess(sampler.dice(round_start).draw_draft(law, position), law)
