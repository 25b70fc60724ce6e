"""Draft length with the largest expected gain, from measured costs and acceptance."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from engine.configuration import MAX_DRAFT
from engine.events import RoundFinished
from engine.speculation.acceptance import Acceptance, Examined
from engine.speculation.costs import Costs, DraftCost
from engine.speculation.predictors.base import DraftToken

RATE_ROUNDS = 32
"""Rounds in the moving mean of the present speed."""
PLAIN_LOSS = 0.005
"""Share of the time spent on plain steps only to measure them."""
PLAIN_EVERY = (24, 1024)
"""Minimum and maximum tokens between such steps."""
MIN_PLAIN, FIRST_PLAIN_EVERY = 3, 8
"""Until this many plain steps of a run are measured, they are made more often."""
N_TRIAL = 3
"""Tokens per round to draft from a source whose cost is unknown."""
N_PROBE = 3
"""Tokens of a source that is off: they are compared with the text, but rarely verified."""
PROBE_LOSS = 0.01
"""Share of the time spent on asking sources that are off."""


@dataclass(slots=True)
class DraftSource:
    """A predictor in one reply."""

    cost: DraftCost
    confidence: float = 0.8
    """Confidence of its last draft's first token."""
    tokens_unasked: float = inf
    """Tokens since it was asked; infinite before the first time."""

    def affords(self, n_steps: float) -> bool:
        """Whether that takes at most `PROBE_LOSS` of the time since it was asked."""
        return n_steps <= PROBE_LOSS * (self.tokens_unasked + 1)


class AutoController:
    """Drafts the length with the largest expected gain.

    With the costs T of batches in plain steps, the probabilities P_i that the first i tokens are
    right, and the present rate r in tokens per plain step, a draft of k tokens gains P_1 + ... +
    P_k - r (T(k + 1) - 1 + its drafting): the renewal-reward argument (Dinkelbach 1967). All
    lengths are compared, because the cost of batches is not monotonic. If none gains, the round is
    plain. Another token is drafted only while a longer draft gains: the rule of SpecDec++ (Huang et
    al. 2024, arXiv 2405.19715) with measured costs.

    A source whose drafts do not gain is asked so rarely that it takes `PROBE_LOSS` of the time; its
    tokens are compared with the text, so it is used again once they are right.

    One per session: it learns across replies. Call `start_reply` before each reply, and add each
    round's times to `costs` before `observe`.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = Costs() if costs is None else costs
        self.acceptance = Acceptance()
        self._n_tokens = self._n_steps = 4.0  # a lucky first round does not set the rate
        self.start_reply()

    def start_reply(self) -> None:
        """Reset the state of one reply; costs and acceptance are retained."""
        self._sources: dict[str, DraftSource] = {}
        self._name, self._current = "", DraftSource(DraftCost())
        self._asked: list[DraftSource] = []
        self._tokens_since_plain = 0
        self.length = 0
        self.reason = "auto: measuring steps without drafts first"

    def wants(self, source: str) -> bool:
        if self.costs.plain.seconds is None:
            return False
        if source not in self._sources:
            self._sources[source] = DraftSource(self.costs.drafts.setdefault(source, DraftCost()))
        self._name, self._current = source, self._sources[source]
        one = self._current
        is_probed = not one.cost.is_known or one.affords(one.cost.steps(N_PROBE))
        is_asked = is_probed or self._best_length() > 0
        if is_asked:
            self._asked.append(one)
        return is_asked

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        one, n_pulled = self._current, len(pulled)
        if not one.cost.is_known:
            return n_pulled < N_TRIAL
        is_probe = n_pulled < N_PROBE and one.affords(N_PROBE * one.cost.step)
        return is_probe or self._best_length(pulled) > n_pulled

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        self._current.confidence = pulled[0].confidence
        return self._best_length(pulled, n_max=len(pulled))

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        """Record a finished round, whose times are in `costs` already."""
        self.acceptance.add(examined)
        if self.costs.plain.seconds is not None:
            n_steps = self.costs.rows.steps(1 + done.n_verified)
            n_steps += self._time_drafting(done.n_drafted, done.draft_s / self.costs.plain.seconds)
            decay = 1.0 - 1.0 / RATE_ROUNDS
            self._n_tokens = decay * self._n_tokens + done.n_emitted
            self._n_steps = decay * self._n_steps + n_steps
        self._tokens_since_plain += done.n_emitted
        if not done.n_verified:
            self._tokens_since_plain = 0
        for source in self._asked:
            source.tokens_unasked = 0
        for source in self._sources.values():
            source.tokens_unasked += done.n_emitted
        self._asked = []
        self._plan()

    def _time_drafting(self, n_drafted: int, n_steps: float) -> float:
        """Record the time of the last source asked; return the expected time of all, in steps.

        The first draft of a reply reads a prompt of unknown overlap, so its time is not recorded.
        """
        if not self._asked:
            return 0.0
        *silent, last = self._asked
        before = sum(source.cost.ask for source in silent)
        if last.tokens_unasked < inf:
            last.cost.add(n_drafted, max(n_steps - before, 0.0))
        return before + last.cost.steps(n_drafted)

    def _plan(self) -> None:
        """Predict the next draft's length, and set the reason."""
        if not self._may_draft:
            self.length, self.reason = 0, "auto: this step has no drafts, to measure the gain"
            return
        self.length = self._best_length()
        expected = max(self.length, 1)
        tokens = 1.0 + sum(self._shares((), expected))
        steps = 1.0 + self._added_steps(expected)
        if self.length:
            self.reason = (
                f"auto: a draft of length {self.length} should yield {tokens:.1f} tokens in the "
                f"time of {steps:.1f} decode steps"
            )
            return
        n_right, n_tried = self.acceptance.counts_of(self._name)
        self.reason = (
            f"off: drafting a token costs {steps - 1.0:.2f} of a decode step, but only about "
            f"{tokens - 1.0:.0%} of drafted tokens are accepted ({n_right:,} of {n_tried:,} so far)"
        )

    @property
    def _rate(self) -> float:
        """Tokens per plain step's time over the last rounds, at least 1."""
        return max(1.0, self._n_tokens / self._n_steps)

    @property
    def _may_draft(self) -> bool:
        """Whether the plain step was measured recently enough."""
        plain = self.costs.plain
        least, most = PLAIN_EVERY
        every = min(max(least, (self._rate - 1.0) / PLAIN_LOSS), most)
        if plain.n_measured < MIN_PLAIN:
            every = FIRST_PLAIN_EVERY
        return plain.seconds is not None and self._tokens_since_plain < every

    def _best_length(self, pulled: Sequence[DraftToken] = (), n_max: int = MAX_DRAFT) -> int:
        """The length whose tokens exceed by most what its time would yield; 0 if none does."""
        if not self._may_draft:
            return 0
        best, best_gain, tokens, rate = 0, 0.0, 0.0, self._rate
        for length, share in enumerate(self._shares(pulled, n_max), 1):
            tokens += share
            gain = tokens - rate * self._added_steps(length, len(pulled))
            if gain > best_gain:
                best, best_gain = length, gain
        return best

    def _shares(self, pulled: Sequence[DraftToken], n: int) -> Iterator[float]:
        """P_1 to P_n, assuming the confidence of the last token for the tokens to come."""
        share = 1.0
        right = self.acceptance.share(self._name, self._current.confidence)
        for index in range(n):
            if index < len(pulled):
                right = self.acceptance.share(self._name, pulled[index].confidence)
            share *= right
            yield share

    def _added_steps(self, length: int, n_pulled: int = 0) -> float:
        """Cost of a round beyond a plain step, after `n_pulled` tokens were drafted."""
        cost = self._current.cost
        drafting = cost.steps(length) - cost.steps(n_pulled) if length > n_pulled else 0.0
        return self.costs.rows.steps(1 + length) - 1.0 + drafting
