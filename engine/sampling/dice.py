"""Chances that belong to one round alone."""

from enum import IntEnum

from engine.sampling.distribution import Distribution
from engine.sampling.noise import fork, uniform


class _Stream(IntEnum):
    """Which of a round's chances: none may tell anything about another."""

    DRAFT = 1
    ACCEPT = 2
    TARGET = 3


class Dice:
    """What rejection and block verification draw in one round.

    They are exact only if the draft's draws, the acceptance tests and the target's draws are
    independent, and if no round uses chances that an earlier one has seen: block verification may
    refuse a token because of a later one, so that what was drawn for a refused position is no
    longer free. Therefore the seed is forked by stream and by the position where the round starts,
    which never comes twice. The draft model and the verifier each make the dice of a round from
    the same two numbers.
    """

    def __init__(self, seed: int, round_start: int) -> None:
        self._seeds = {stream: fork(seed, stream, round_start) for stream in _Stream}

    def draw_draft(self, distribution: Distribution, position: int) -> int:
        """Draw a token of the draft."""
        return distribution.draw(self._seeds[_Stream.DRAFT], position)

    def accepts(self, probability: float, position: int) -> bool:
        """Say yes with the given probability."""
        return uniform(self._seeds[_Stream.ACCEPT], position) <= probability

    def draw(self, distribution: Distribution, position: int) -> int:
        """Draw the token of the target behind the accepted ones."""
        return distribution.draw(self._seeds[_Stream.TARGET], position)
