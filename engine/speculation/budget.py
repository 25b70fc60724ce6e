"""How much slower than plain decoding speculation may ever make a session."""

START = 3.0
"""Plain steps that a session may lose before it has won any."""
SHARE = 0.01
"""Share of the time that may be lost for good, in plain steps a token."""
LIMIT = 6.0
"""Most plain steps that may be saved up; won time beyond it is not risked again."""


class SlowdownBudget:
    """The guard of a conservative bandit (Wu et al. 2016, arXiv 1602.04282) over rounds.

    A round that could cost more than the credit, if every drafted token were wrong, is not made.
    So n tokens take at most (1 + `SHARE`) n + `START` plain steps, up to errors of measurement, and
    since credit is capped no later stretch loses more than `LIMIT` steps beside its share.
    """

    def __init__(self) -> None:
        self.credit = START

    def allows(self, n_steps: float) -> bool:
        """Tell whether losing that many plain steps is within the credit."""
        return n_steps <= self.credit

    def settle(self, n_emitted: int, n_steps: float) -> None:
        """Take the tokens of a round and the plain steps that it took."""
        self.credit = min(LIMIT, self.credit + n_emitted * (1.0 + SHARE) - n_steps)
