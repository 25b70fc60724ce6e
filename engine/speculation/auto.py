"""Draft length with the largest expected gain, from measured costs and acceptance.

It uses the costs of batch rows and of guesses (`costs`), the share of right guesses
(`acceptance`), and a credit that bounds the loss from exploring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from engine.configuration import MAX_DRAFT
from engine.events import RoundFinished
from engine.speculation.acceptance import Acceptance, Examined
from engine.speculation.costs import Costs, DraftCost
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.draft_model import RESTART

START = 3.0
"""Initial credit of a session, in plain steps."""
LOSS = 0.01
"""Credit per emitted token, in plain steps: the share of the time that may be lost."""
LIMIT = 6.0
"""Maximum credit, in plain steps."""
RATE_ROUNDS = 32
SURE = 0.9
"""Share of the expected tokens that must pay for a draft that the credit does not cover."""

PLAIN_LOSS = 0.005
"""Share of the time spent on plain steps only to measure them."""
PLAIN_EVERY = (24, 1024)
MIN_PLAIN = 3
"""Until this many plain steps of a run are measured, they are made more often."""
OUTLOOK = 128
"""Assumed remaining tokens of a reply when a draft model's catch-up is weighed."""

CHEAP = 0.06
"""Maximum cost of `N_UNVERIFIED` guesses of a cheap source, in plain steps."""
N_UNVERIFIED = 4
N_TRIAL = 3
"""Guesses per round of a source whose cost is unknown."""
UNVERIFIED_LOSS = 0.004
"""Share of the time that a cheap source may use while it is off."""
WON_FOR = 48
"""Tokens after a verified draft in which a cheap source is asked every round: its success depends
on the passage."""
FIRST_TOKENS = 16
"""Tokens at the start of a reply in which a cheap source is asked every round."""
PROBE_EVERY = (24, 192)
"""Minimum and maximum tokens between probes of a source that is off; doubled after each wrong
probe, reset after a right one."""


class Credit:
    """Bound on the time that speculation may lose against plain decoding.

    The guard of a conservative bandit (Wu et al. 2016, arXiv 1602.04282): a round is not made if
    it could cost more than the credit with every drafted token wrong. So n tokens take at most
    (1 + `LOSS`) n + `START` plain steps, up to measurement errors. Credit is capped, so n later
    tokens lose at most `LOSS` n + `LIMIT` steps.
    """

    def __init__(self) -> None:
        self.steps = START
        self.rate = 1.0
        """Tokens per plain step's time over the last rounds, at least 1."""
        self._n_tokens = self._n_steps = 4.0  # a lucky first round does not set the rate

    def settle(self, n_emitted: int, n_steps: float) -> None:
        """Record a round's tokens and its expected time in plain steps."""
        self.steps = min(LIMIT, self.steps + n_emitted * (1.0 + LOSS) - n_steps)
        decay = 1.0 - 1.0 / RATE_ROUNDS
        self._n_tokens = decay * self._n_tokens + n_emitted
        self._n_steps = decay * self._n_steps + n_steps
        self.rate = max(1.0, self._n_tokens / self._n_steps)


def best_length(
    shares: Sequence[float],
    added_steps: Sequence[float],
    *,
    rate: float,
    credit: float,
    is_known: bool = False,
) -> int:
    """Draft length with the largest expected gain; 0 if none gains.

    Renewal-reward argument: the most tokens per second come from the largest
    `tokens - rate * time`, where `rate` is that maximum itself (Dinkelbach 1967). All lengths are
    compared, because the cost per row is not monotonic.

    Args:
        shares: for each length, the probability that all guesses up to it are right.
        added_steps: for each length, the round's cost beyond one plain step, in plain steps.
        rate: tokens per plain step's time.
        credit: plain steps that may be lost if every guess is wrong.
        is_known: whether the shares rest on many guesses. Then a draft beyond the credit is made
            if `SURE` of its expected tokens beats plain decoding; otherwise credit spent on one
            source would block a better one forever. `rate` is no criterion here, because the gain
            over it vanishes at the best length.
    """
    best, best_gain, tokens = 0, 0.0, 0.0
    for length, (share, steps) in enumerate(zip(shares, added_steps, strict=False), start=1):
        tokens += share
        gain = tokens - rate * steps
        is_covered = steps <= credit or (is_known and SURE * tokens > steps)
        if gain > best_gain and is_covered:
            best, best_gain = length, gain
    return best


@dataclass(slots=True)
class DraftSource:
    """One predictor in one reply: its cost, and its probes while it is off."""

    cost: DraftCost
    confidence: float = 0.8
    """Confidence of its last draft's first guess."""
    n_missed: int | None = None
    """Tokens to catch up with; None before its first guess of the reply."""
    tokens_off: int = 0
    probe_after: int = PROBE_EVERY[0]
    awaits_probe: bool = False
    """Whether a probe's guesses are not yet compared with the text."""
    tokens_since_won: int = WON_FOR - FIRST_TOKENS
    rounds_unasked: float = inf

    @property
    def is_known(self) -> bool:
        """Whether its cost was measured."""
        return self.cost.is_known

    @property
    def is_cheap(self) -> bool:
        """Whether it may be asked in plain rounds, to learn from unverified guesses."""
        return self.is_known and self.cost.steps(N_UNVERIFIED, 0) <= CHEAP

    @property
    def is_turn(self) -> bool:
        """Whether a cheap source that is off is asked in this round."""
        if self.tokens_since_won <= WON_FOR:
            return True
        return self.rounds_unasked * UNVERIFIED_LOSS >= self.cost.steps(N_UNVERIFIED, 0)

    @property
    def is_probe_due(self) -> bool:
        """Whether to ask it although no draft is expected to gain."""
        return self.tokens_off >= self.probe_after

    def steps(self, n_drafted: int) -> float:
        """Cost of its next draft, in plain steps."""
        if not n_drafted:
            return 0.0
        n_missed = RESTART if self.n_missed is None else min(self.n_missed, RESTART)
        return self.cost.steps(n_drafted, n_missed)

    def wakes(self) -> None:
        """Reset the probe interval, because its drafts gain."""
        self.probe_after, self.tokens_off = PROBE_EVERY[0], 0

    def end_round(self, n_emitted: int, *, was_asked: bool) -> None:
        """Record a round's tokens."""
        self.tokens_off += n_emitted
        self.tokens_since_won += n_emitted
        self.rounds_unasked = 0 if was_asked else self.rounds_unasked + 1
        if was_asked:
            self.n_missed = n_emitted
        elif self.n_missed is not None:
            self.n_missed += n_emitted

    def end_probe(self, *, was_right: bool) -> None:
        """Record a probe's outcome: double the interval if it was wrong, else reset it."""
        self.awaits_probe = False
        self.probe_after = (
            PROBE_EVERY[0] if was_right else min(2 * self.probe_after, PROBE_EVERY[1])
        )


class AutoController:
    """Drafts another token while that raises the tokens per second (renewal-reward argument).

    With the row costs T in plain steps, the probabilities P_i that the first i guesses are right,
    and the rate r in tokens per step, a draft of k tokens gains P_1 + ... + P_k - r (T(k + 1) - 1 +
    its drafting). The k with the largest gain is verified; if none gains, the round is plain.
    A source whose guesses cost time is asked for another one only while a longer draft gains: the
    rule of SpecDec++ (Huang et al. 2024, arXiv 2405.19715) with a measured threshold, over all
    longer lengths.

    `Credit` bounds losses. Cheap sources are also asked in plain rounds, and their guesses are
    compared with the text; other sources that are off are probed with growing intervals.

    One per session: it learns across replies. Call `start_reply` before each reply, and add each
    round's times to `costs` before `observe`.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = Costs() if costs is None else costs
        self.acceptance = Acceptance()
        self.credit = Credit()
        self.start_reply()

    def start_reply(self) -> None:
        """Reset the state of one reply; costs and acceptance are retained."""
        self._sources: dict[str, DraftSource] = {}
        self._name = ""
        self._current = DraftSource(DraftCost())
        self._asked: list[str] = []
        self._pulled_shares: list[float] = []
        """P_1, P_2, ... of the guesses pulled in this round."""
        self._is_cheap = False
        self._n_wanted = MAX_DRAFT
        self._tokens_since_plain = 0
        self._has_caught_up = False
        self._n_caught_up = 0
        self.length = 0
        self.reason = "auto: measuring steps without drafts first"

    # --- before and while drafting ---

    def wants(self, source: str) -> bool:
        """Whether to ask a source for its first guess of the round."""
        if source != self._name:
            if source not in self._sources:
                cost = self.costs.drafts.setdefault(source, DraftCost())
                self._sources[source] = DraftSource(cost)
            self._name, self._current = source, self._sources[source]
            self._pulled_shares.clear()
            self.length = self._best(self._shares([]), n_sunk=0) if self._may_draft else 0
        self._is_cheap = self._current.is_cheap
        is_asked = self._is_worth_asking(self._current)
        if is_asked:
            self._asked.append(source)
        return is_asked

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        """Whether to pull another guess after `pulled`."""
        source = self._current
        if self._is_cheap:
            if len(pulled) == 1:
                is_worth_it = self._best(self._shares(pulled), n_sunk=MAX_DRAFT) > 0
                self._n_wanted = MAX_DRAFT if is_worth_it else N_UNVERIFIED
            return len(pulled) < self._n_wanted
        if not source.is_known:
            return len(pulled) < N_TRIAL
        if source.is_probe_due:
            return not self._verifies_probe and len(pulled) < N_UNVERIFIED
        if not self._may_draft or len(pulled) >= min(MAX_DRAFT, self.costs.rows.reach - 1):
            return False
        return self._best(self._shares(pulled), n_sunk=len(pulled)) > len(pulled)

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        """Number of guesses to verify; 0 for a plain round."""
        source = self._current
        source.confidence = pulled[0].confidence
        if not self._may_draft:
            return 0
        n_best = self._best(self._shares(pulled)[: len(pulled)], n_sunk=len(pulled))
        if n_best:
            source.tokens_since_won = 0
        elif source.is_probe_due and self._verifies_probe and self._affords(1):
            return 1
        return n_best

    def affords_catch_up(self, n_tokens: int) -> bool:
        """Whether a draft model should decode all tokens that it missed.

        The first catch-up of a reply is made if the expected gain over `OUTLOOK` tokens exceeds its
        cost. It is not charged: that would block the drafts it was made for. Later ones must fit
        in the credit.
        """
        cost = self._current.cost.catch_up(n_tokens)
        if not self._current.is_known:
            return False
        if self._has_caught_up:
            is_worth_it = cost <= self.credit.steps
            self.credit.steps -= cost if is_worth_it else 0.0
        else:
            is_worth_it = self._has_caught_up = self._wins_more_than(cost)
        self._n_caught_up = n_tokens if is_worth_it else 0
        return is_worth_it

    def _wins_more_than(self, cost: float) -> bool:
        shares = self._shares([])
        length = self._best(shares, n_sunk=0)
        if not length:
            return False
        tokens, steps = self._outcome(shares, length)
        return OUTLOOK * (1.0 - steps / tokens) > cost

    # --- after the round ---

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        """Record a finished round, whose times are in `costs` already."""
        self.acceptance.add(examined)
        for guess in examined:
            source = self._sources.get(guess.source)
            if source is not None and source.awaits_probe:
                source.end_probe(was_right=guess.is_right)
        plain_s = self.costs.plain.seconds
        if plain_s is not None:
            # Charge the expected time, not this round's: it may have stalled.
            n_steps = self.costs.rows.steps(1 + done.n_verified)
            n_steps += self._time_drafting(done, done.draft_s / plain_s)
            self.credit.settle(done.n_emitted, n_steps)
        self._count(done)
        self._asked = []
        self._pulled_shares.clear()
        self._n_caught_up = 0
        self._plan()

    def _time_drafting(self, done: RoundFinished, n_steps: float) -> float:
        """Attribute the drafting time to the sources asked; return the expected time, in steps."""
        if not self._asked:
            return 0.0
        *silent, last = (self._sources[name] for name in self._asked)
        charged = sum(source.cost.silence for source in silent)
        own = max(n_steps - charged, 0.0)
        if not done.n_drafted:
            if last.n_missed is not None:
                last.cost.add_silent(own)
            return charged + last.cost.silence
        if last.n_missed is None:
            # A first guess reads a prompt of unknown overlap: its time is not representative.
            if not last.is_known:
                last.cost.add(done.n_drafted, RESTART, own)
            return charged
        n_missed = self._n_caught_up or min(last.n_missed, RESTART)
        last.cost.add(done.n_drafted, n_missed, own)
        n_missed = 0 if self._n_caught_up else n_missed  # charged in `affords_catch_up`
        return charged + last.cost.steps(done.n_drafted, n_missed)

    def _count(self, done: RoundFinished) -> None:
        self._tokens_since_plain += done.n_emitted
        if not done.n_verified:
            self._tokens_since_plain = 0
        for name, source in self._sources.items():
            was_asked = name in self._asked
            source.end_round(done.n_emitted, was_asked=was_asked)
            is_verified = done.n_verified and name == self._name
            if is_verified or (was_asked and not source.is_cheap):
                if source.is_probe_due:
                    source.awaits_probe = not is_verified
                    if is_verified:
                        source.end_probe(was_right=done.n_accepted > 0)
                source.tokens_off = 0

    def _plan(self) -> None:
        """Predict the next draft's length, and set the reason."""
        if not self._may_draft:
            self.length, self.reason = 0, "auto: a step without drafts, to measure the gain"
            return
        shares = self._shares([])
        length = self._best(shares, n_sunk=0, credit=inf)
        self.length = self._best(shares, n_sunk=0) if length else 0
        if self.length:
            self._current.wakes()
            self.reason = f"auto: {self._yield(shares, self.length)}"
            return
        if length:
            self.reason = (
                f"off: {self._yield(shares, length)}, but too many drafts were rejected lately"
            )
            return
        n_right, n_tried = self.acceptance.counts_of(self._name)
        self.reason = (
            f"off: drafting a token costs {self._added_steps(1)[0]:.2f} of a decode step, but "
            f"only about {shares[0]:.0%} of drafted tokens are accepted ({n_right:,} of "
            f"{n_tried:,} so far)"
        )

    def _yield(self, shares: Sequence[float], length: int) -> str:
        tokens, steps = self._outcome(shares, length)
        return (
            f"a draft of length {length} should yield {tokens:.1f} tokens in the time of "
            f"{steps:.1f} decode steps"
        )

    # --- what is known ---

    def _is_worth_asking(self, source: DraftSource) -> bool:
        if not source.is_known:
            return self.costs.plain.seconds is not None
        if source.is_cheap and source.is_turn:
            return True
        if not source.is_cheap and not self._may_draft:
            return False
        if not source.is_cheap and source.is_probe_due:
            is_affordable = source.n_missed is not None or self.credit.steps >= START
            return is_affordable and self._affords_probe
        return self.length > 0

    @property
    def _may_draft(self) -> bool:
        """Whether the plain step was measured recently enough."""
        plain = self.costs.plain
        if plain.seconds is None:
            return False
        least, most = PLAIN_EVERY
        every = min(max(least, (self.credit.rate - 1.0) / PLAIN_LOSS), most)
        if plain.n_measured < MIN_PLAIN:
            every = least / 3
        return self._tokens_since_plain < every

    def _shares(self, pulled: Sequence[DraftToken]) -> list[float]:
        """P_1 to P_16, assuming the confidence of the last guess for the guesses to come."""
        known, share_of = self._pulled_shares, self.acceptance.share
        for guess in pulled[len(known) :]:
            before = known[-1] if known else 1.0
            known.append(before * share_of(self._name, guess.confidence))
        last = pulled[-1].confidence if pulled else self._current.confidence
        shares, share = known[: len(pulled)], share_of(self._name, last)
        product = shares[-1] if shares else 1.0
        while len(shares) < MAX_DRAFT:
            product *= share
            shares.append(product)
        return shares

    def _best(self, shares: Sequence[float], *, n_sunk: int, credit: float | None = None) -> int:
        """Best length within `credit` (default: the session's) after `n_sunk` paid guesses."""
        return best_length(
            shares,
            self._added_steps(len(shares), n_sunk),
            rate=self.credit.rate,
            credit=self.credit.steps if credit is None else credit,
            is_known=self.acceptance.is_known(self._name),
        )

    def _outcome(self, shares: Sequence[float], length: int) -> tuple[float, float]:
        """Expected tokens and plain steps of a round with a draft of that length."""
        return 1.0 + sum(shares[:length]), 1.0 + self._added_steps(length)[-1]

    def _added_steps(self, n_most: int, n_sunk: int = 0) -> list[float]:
        """Cost of a round beyond a plain step for each draft length that may be tried."""
        rows, source = self.costs.rows, self._current
        batch = rows.all_steps
        lengths = range(1, min(n_most, rows.reach - 1) + 1)
        if n_sunk >= n_most:
            return [batch[length] - 1.0 for length in lengths]
        fixed, step = source.steps(1) - source.steps(n_sunk), source.cost.step or 0.0
        return [
            batch[length] - 1.0 + (fixed + step * (length - 1) if length > n_sunk else 0.0)
            for length in lengths
        ]

    @property
    def _verifies_probe(self) -> bool:
        """Whether verifying one guess is cheaper than `N_UNVERIFIED` unverified guesses."""
        step = self._current.cost.step or 0.0
        is_dear = self.costs.rows.steps(2) - 1.0 > step * (N_UNVERIFIED - 1)
        return self._current.is_cheap or not is_dear

    @property
    def _affords_probe(self) -> bool:
        if self._verifies_probe:
            return self._affords(1)
        return self._current.steps(N_UNVERIFIED) <= self.credit.steps

    def _affords(self, length: int) -> bool:
        return self._added_steps(length)[-1] <= self.credit.steps
