"""What a session has learned of its machine and its text."""

from collections import deque

from engine.speculation.acceptance import Acceptance
from engine.speculation.budget import SlowdownBudget
from engine.speculation.curve import BatchCurve
from engine.speculation.drafting_cost import DraftingCost
from engine.speculation.profile import CostProfile

RATE_ROUNDS = 64
PLAIN_PRIOR = 4
"""Plain rounds that the rate starts from, so that a lucky first round does not set it."""

LEAST_POINTS = 3
CHECKED_AT = 3
"""Plain steps behind which an earlier run's costs are checked."""
CHANGED = 2.0


class Experience:
    """Costs, shares, credit and rate, as a controller leaves them to the next reply's."""

    def __init__(self, known: CostProfile | None = None) -> None:
        """Start from the costs of an earlier run, or from nothing."""
        self._known = known
        self.curve = BatchCurve(() if known is None else known.points)
        self.acceptance = Acceptance()
        self.budget = SlowdownBudget()
        self.drafting: dict[str, DraftingCost] = {}
        if known is not None:
            self.drafting = {name: DraftingCost(cost) for name, cost in known.drafting.items()}
        self.tokens_per_step = 1.0
        """Tokens in the time of a plain step over the last rounds, at least 1."""
        self._rounds: deque[tuple[int, float]] = deque()
        self._n_tokens = PLAIN_PRIOR
        self._n_steps = float(PLAIN_PRIOR)
        self._debt = 0.0
        self._instalment = 0.0

    def profile(self) -> CostProfile | None:
        """Give the costs for a later run, None where too little was measured."""
        plain_s, points = self.curve.plain_s, self.curve.measured()
        if plain_s is None or len(points) < LEAST_POINTS:
            return None
        costs = {name: cost.known() for name, cost in self.drafting.items()}
        return CostProfile(plain_s, points, {n: cost for n, cost in costs.items() if cost})

    def check(self) -> None:
        """Forget the costs of an earlier run where the plain step is another one by now.

        Machines become slower for a while and their batches with them; a step that is `CHANGED`
        times as long or as short was measured on what is another machine.
        """
        plain_s = self.curve.plain_s
        if self._known is None or plain_s is None or self.curve.plain.n_measured < CHECKED_AT:
            return
        known_s, self._known = self._known.plain_s, None
        if not 1 / CHANGED <= plain_s / known_s <= CHANGED:
            self.curve = self.curve.afresh()
            self.drafting.clear()

    def owe(self, n_steps: float, n_tokens: int) -> None:
        """Take a cost that is charged to the budget over the next tokens, not at once."""
        self._debt += n_steps
        self._instalment = self._debt / n_tokens

    def add_round(self, n_emitted: int, n_steps: float) -> None:
        """Take the tokens of a round and the plain steps that such a round takes."""
        paid = min(self._debt, n_emitted * self._instalment)
        self._debt -= paid
        self.budget.settle(n_emitted, n_steps + paid)
        if len(self._rounds) == RATE_ROUNDS:
            old_tokens, old_steps = self._rounds.popleft()
            self._n_tokens -= old_tokens
            self._n_steps -= old_steps
        self._rounds.append((n_emitted, n_steps))
        self._n_tokens += n_emitted
        self._n_steps += n_steps
        self.tokens_per_step = max(1.0, self._n_tokens / self._n_steps)
