"""What a session has learned of its machine and its text."""

from collections import deque

from engine.speculation.acceptance import Acceptance
from engine.speculation.budget import SlowdownBudget
from engine.speculation.curve import BatchCurve
from engine.speculation.drafting_cost import DraftingCost

RATE_ROUNDS = 64
PLAIN_PRIOR = 4
"""Plain rounds that the rate starts from, so that a lucky first round does not set it."""


class Experience:
    """Costs, shares, credit and rate, as a controller leaves them to the next reply's."""

    def __init__(self) -> None:
        self.curve = BatchCurve()
        self.acceptance = Acceptance()
        self.budget = SlowdownBudget()
        self.drafting: dict[str, DraftingCost] = {}
        self.tokens_per_step = 1.0
        """Tokens in the time of a plain step over the last rounds, at least 1."""
        self._rounds: deque[tuple[int, float]] = deque(maxlen=RATE_ROUNDS)
        self._debt = 0.0
        self._instalment = 0.0

    def owe(self, n_steps: float, n_tokens: int) -> None:
        """Take a cost that is charged to the budget over the next tokens, not at once."""
        self._debt += n_steps
        self._instalment = self._debt / n_tokens

    def add_round(self, n_emitted: int, n_steps: float) -> None:
        """Take the tokens of a round and the plain steps that such a round takes."""
        paid = min(self._debt, n_emitted * self._instalment)
        self._debt -= paid
        self.budget.settle(n_emitted, n_steps + paid)
        self._rounds.append((n_emitted, n_steps))
        n_tokens = PLAIN_PRIOR + sum(tokens for tokens, _ in self._rounds)
        steps = PLAIN_PRIOR + sum(steps for _, steps in self._rounds)
        self.tokens_per_step = max(1.0, n_tokens / steps)
