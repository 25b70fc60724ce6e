"""Every outcome of a program that draws by chance, each with its exact probability."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from engine.configuration import SamplingSettings
from engine.sampling import Choice, Dice, Distribution, Sampler, TokenMask

Outcome = TypeVar("Outcome", bound=Hashable)


class Chances:
    """Answers along one path of choices; `distribution_of` walks all of them."""

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.probability = 1.0
        self.n_options: list[int] = []

    def choose(self, weights: Sequence[float]) -> int:
        """Give the number of an option; options without weight are never taken."""
        possible = [index for index, weight in enumerate(weights) if weight > 0.0]
        depth = len(self.n_options)
        if depth == len(self.path):
            self.path.append(0)
        self.n_options.append(len(possible))
        chosen = possible[self.path[depth]]
        self.probability *= weights[chosen]
        return chosen


def distribution_of(program: Callable[[Chances], Outcome]) -> dict[Outcome, float]:
    """Run a program along each path of its chances; gives the probability of each outcome."""
    found: defaultdict[Outcome, float] = defaultdict(float)
    path: list[int] = []
    while True:
        chances = Chances(path)
        outcome = program(chances)
        found[outcome] += chances.probability
        path = chances.path
        while path and path[-1] + 1 == chances.n_options[len(path) - 1]:
            path.pop()
        if not path:
            return dict(found)
        path[-1] += 1


class EnumeratedDice(Dice):
    def __init__(self, chances: Chances) -> None:
        self._chances = chances

    def draw_draft(self, distribution: Distribution, position: int) -> int:
        return self.draw(distribution, position)

    def accepts(self, probability: float, position: int) -> bool:
        return self._chances.choose((probability, 1.0 - probability)) == 0

    def draw(self, distribution: Distribution, position: int) -> int:
        return int(distribution.tokens[self._chances.choose(distribution.probs.tolist())])


class EnumeratedSampler(Sampler):
    """A sampler whose draws are chances.

    Draft and target draw apart from each other, which is one of the couplings that shared noise
    might be: the target must not depend on which.
    """

    def __init__(
        self, settings: SamplingSettings, chances: Chances, mask: TokenMask | None = None
    ) -> None:
        super().__init__(settings, seed=0, mask=mask)
        self._dice = EnumeratedDice(chances)

    def pick(self, distribution: Distribution, position: int) -> Choice:
        return Choice(self._dice.draw(distribution, position), float("inf"))

    def dice(self, round_start: int) -> Dice:
        return self._dice
