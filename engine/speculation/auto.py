"""How many to draft, decided by the gain that measured costs and acceptance promise.

Four ideas: what rows cost and what guesses cost (`costs`), how often guesses are right
(`acceptance`), and a credit that bounds what exploring may lose.
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
"""Plain steps that a session may lose before it has won any."""
LOSS = 0.01
"""Share of the time that may be lost for good, in plain steps a token."""
LIMIT = 6.0
"""Most plain steps that may be saved up; won time beyond it is not risked again."""
RATE_ROUNDS = 32
SURE = 0.9
"""Share of the expected tokens that has to pay for a draft which the credit does not cover."""

PLAIN_LOSS = 0.005
"""Share of the time that goes into plain steps which only measure."""
PLAIN_EVERY = (24, 1024)
MIN_PLAIN = 3
"""Plain steps of this run below which they are measured more often."""
OUTLOOK = 128
"""Tokens that a reply is taken to go on for where a draft model would have to catch up first."""

CHEAP = 0.06
"""Plain steps that `N_PASSING` guesses may cost for a source to be asked in passing."""
N_PASSING = 4
N_TRIAL = 3
"""Guesses that a source makes whatever they cost, until their cost is known."""
PASSING_LOSS = 0.004
"""Share of the time that a cheap source may take while it is off."""
WON_FOR = 48
"""Tokens for which a cheap source is asked in every round behind a draft of its that was worth it:
what it proposes differs from place to place, and only asking tells."""
FIRST_TOKENS = 16
"""Tokens at the start of a reply for which a cheap source is asked in every round."""
PROBE_EVERY = (24, 192)
"""Tokens between two probes of a source that is off: at first and after a right one, and doubled
after wrong ones up to."""


class Credit:
    """How much slower than plain decoding speculation may ever make a session.

    The guard of a conservative bandit (Wu et al. 2016, arXiv 1602.04282) over rounds: one that
    could cost more than the credit, if every drafted token were wrong, is not made. So n tokens
    take at most (1 + `LOSS`) n + `START` plain steps, up to errors of measurement, and since credit
    is capped no later stretch loses more than `LIMIT` steps beside its share.
    """

    def __init__(self) -> None:
        self.steps = START
        self.rate = 1.0
        """Tokens in the time of a plain step over the last rounds, at least 1."""
        self._n_tokens = self._n_steps = 4.0  # a lucky first round does not set the rate

    def settle(self, n_emitted: int, n_steps: float) -> None:
        """Take the tokens of a round and the plain steps that such a round takes."""
        self.steps = min(LIMIT, self.steps + n_emitted * (1.0 + LOSS) - n_steps)
        kept = 1.0 - 1.0 / RATE_ROUNDS
        self._n_tokens = kept * self._n_tokens + n_emitted
        self._n_steps = kept * self._n_steps + n_steps
        self.rate = max(1.0, self._n_tokens / self._n_steps)


def best_length(
    shares: Sequence[float],
    added_steps: Sequence[float],
    *,
    rate: float,
    credit: float,
    is_known: bool = False,
) -> int:
    """The length whose tokens exceed what its time would give by most, 0 where none does.

    Renewal-reward argument: among rounds of unlike length the best tokens per second come from the
    largest `tokens - rate * time`, with `rate` that best itself (Dinkelbach 1967). All lengths are
    looked at, so a kink of the costs is jumped where the other side is worth it.

    Args:
        shares: for each length the share of rounds whose guesses are all right up to there.
        added_steps: for each length the plain steps that a round takes beyond one.
        rate: tokens in the time of a plain step.
        credit: plain steps that may be lost if every guess is wrong.
        is_known: whether the shares rest on many guesses: then a draft is made without credit too
            where it beats plain decoding with `SURE` of its expected tokens. Without that, credit
            which was spent on one source would keep a better one from ever earning it back. The
            rate is no measure here: at the best length the gain over it comes to nothing.
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
    """One source of guesses in one reply: what it costs, and when it is asked while it is off."""

    cost: DraftCost
    confidence: float = 0.8
    """Of its last first guess."""
    n_behind: int | None = None
    """Tokens that it has to catch up with; None before its first guess of the reply."""
    tokens_off: int = 0
    probe_after: int = PROBE_EVERY[0]
    awaits_probe: bool = False
    """Whether the line has yet to say if the guesses of a probe were right."""
    tokens_since_won: int = WON_FOR - FIRST_TOKENS
    rounds_unasked: float = inf

    @property
    def is_known(self) -> bool:
        """Whether its cost was measured."""
        return self.cost.is_known

    @property
    def is_cheap(self) -> bool:
        """Whether it is asked in passing: guesses that nobody verifies still teach."""
        return self.is_known and self.cost.steps(N_PASSING, 0) <= CHEAP

    @property
    def is_turn(self) -> bool:
        """Whether a cheap source is asked though it is off: so rarely that it hardly costs."""
        if self.tokens_since_won <= WON_FOR:
            return True
        return self.rounds_unasked * PASSING_LOSS >= self.cost.steps(N_PASSING, 0)

    @property
    def is_probe_due(self) -> bool:
        """Whether it makes guesses though none is expected to gain."""
        return self.tokens_off >= self.probe_after

    def steps(self, n_drafted: int) -> float:
        """The cost of its coming draft, in plain steps."""
        if not n_drafted:
            return 0.0
        n_missed = RESTART if self.n_behind is None else min(self.n_behind, RESTART)
        return self.cost.steps(n_drafted, n_missed)

    def wakes(self) -> None:
        """Take that its drafts gain: a later pause starts with short ones between probes."""
        self.probe_after, self.tokens_off = PROBE_EVERY[0], 0

    def end_round(self, n_emitted: int, *, was_asked: bool) -> None:
        """Take the tokens of a round."""
        self.tokens_off += n_emitted
        self.tokens_since_won += n_emitted
        self.rounds_unasked = 0 if was_asked else self.rounds_unasked + 1
        if was_asked:
            self.n_behind = n_emitted
        elif self.n_behind is not None:
            self.n_behind += n_emitted

    def end_probe(self, *, was_right: bool) -> None:
        """Take the outcome of a probe: wrong ones make the next one rarer."""
        self.awaits_probe = False
        self.probe_after = (
            PROBE_EVERY[0] if was_right else min(2 * self.probe_after, PROBE_EVERY[1])
        )


class AutoController:
    """Drafts another token while it raises the tokens per second (renewal-reward argument).

    With the measured row costs T in plain steps, shares P_i that the first i guesses are right, and
    the rate r in tokens a step, a draft of k tokens gains P_1 + ... + P_k - r (T(k + 1) - 1 + its
    drafting); the k with the largest gain is verified, and where none gains the round is plain.
    A source whose guesses cost time is asked for the next one only while some longer draft still
    gains: the rule of SpecDec++ (Huang et al. 2024, arXiv 2405.19715) with a measured threshold,
    looking ahead over kinks of the costs.

    Losses are bounded by `Credit`. Cheap sources are asked in plain rounds too, and what the line
    then says counts as examined; others are probed ever more rarely.

    It belongs to a session and learns from reply to reply: `start_reply` goes before each. Whoever
    runs the rounds adds their times to `costs`, before `observe`.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = Costs() if costs is None else costs
        self.acceptance = Acceptance()
        self.credit = Credit()
        self.start_reply()

    def start_reply(self) -> None:
        """Forget where the sources stood; what they cost and how often they are right stays."""
        self._sources: dict[str, DraftSource] = {}
        self._name = ""
        self._current = DraftSource(DraftCost())
        self._asked: list[str] = []
        self._pulled_shares: list[float] = []
        """P_1 and so on of the guesses that were pulled in this round."""
        self._is_cheap = False
        self._n_wanted = MAX_DRAFT
        self._tokens_since_plain = 0
        self._has_caught_up = False
        self._n_caught_up = 0
        self.length = 0
        self.reason = "auto: measuring steps without drafts first"

    # --- before and while drafting ---

    def wants(self, source: str) -> bool:
        """Whether a source is to make its first guess of the round."""
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
        """Whether one more guess is worth being made behind those."""
        source = self._current
        if self._is_cheap:
            if len(pulled) == 1:
                is_worth_it = self._best(self._shares(pulled), n_sunk=MAX_DRAFT) > 0
                self._n_wanted = MAX_DRAFT if is_worth_it else N_PASSING
            return len(pulled) < self._n_wanted
        if not source.is_known:
            return len(pulled) < N_TRIAL
        if source.is_probe_due:
            return not self._verifies_probe and len(pulled) < N_PASSING
        if not self._may_draft or len(pulled) >= min(MAX_DRAFT, self.costs.rows.reach - 1):
            return False
        return self._best(self._shares(pulled), n_sunk=len(pulled)) > len(pulled)

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        """The number of guesses that go into the batch; 0 makes a plain round."""
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
        """Whether a draft model is to take in all of the line that it missed.

        Once in a reply it is made where better drafts may win more in the rest of it, as far as is
        known. That is not charged: credit spent on it would bar the drafts that it was made for. A
        further one has to lie within the credit.
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
        """Take a round that was made, whose times are in `costs` already."""
        self.acceptance.add(examined)
        for guess in examined:
            source = self._sources.get(guess.source)
            if source is not None and source.awaits_probe:
                source.end_probe(was_right=guess.is_right)
        plain_s = self.costs.plain.seconds
        if plain_s is not None:
            # What such rounds take is charged, not what this one took: a stall is nobody's fault.
            n_steps = self.costs.rows.steps(1 + done.n_verified)
            n_steps += self._time_drafting(done, done.draft_s / plain_s)
            self.credit.settle(done.n_emitted, n_steps)
        self._count(done)
        self._asked = []
        self._pulled_shares.clear()
        self._n_caught_up = 0
        self._plan()

    def _time_drafting(self, done: RoundFinished, n_steps: float) -> float:
        """Share the time of guessing out to who was asked; what such asking takes."""
        if not self._asked:
            return 0.0
        *silent, last = (self._sources[name] for name in self._asked)
        charged = sum(source.cost.silence for source in silent)
        own = max(n_steps - charged, 0.0)
        if not done.n_drafted:
            if last.n_behind is not None:
                last.cost.add_silent(own)
            return charged + last.cost.silence
        if last.n_behind is None:
            # A first guess reads a line of unknown overlap: its time tells little, and is no choice
            # of this rule's.
            if not last.is_known:
                last.cost.add(done.n_drafted, RESTART, own)
            return charged
        n_missed = self._n_caught_up or min(last.n_behind, RESTART)
        last.cost.add(done.n_drafted, n_missed, own)
        n_missed = 0 if self._n_caught_up else n_missed  # `affords_catch_up` has seen to that
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
        """What the next round is likely to be, and why."""
        if not self._may_draft:
            self.length, self.reason = 0, "auto: a step without drafts, to measure the gain"
            return
        shares = self._shares([])
        length = self._best(shares, n_sunk=0, credit=inf)
        self.length = self._best(shares, n_sunk=0) if length else 0
        if self.length:
            self._current.wakes()
            self.reason = f"auto: {self._said(shares, self.length)}"
            return
        if length:
            self.reason = (
                f"off: {self._said(shares, length)}, but too many drafts were rejected lately"
            )
            return
        n_right, n_tried = self.acceptance.counts_of(self._name)
        self.reason = (
            f"off: drafting a token costs {self._added_steps(1)[0]:.2f} of a decode step, but "
            f"only about {shares[0]:.0%} of drafted tokens are accepted ({n_right:,} of "
            f"{n_tried:,} so far)"
        )

    def _said(self, shares: Sequence[float], length: int) -> str:
        tokens, steps = self._outcome(shares, length)
        return (
            f"drafting {length} tokens should yield {tokens:.1f} tokens in the time of "
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
            is_affordable = source.n_behind is not None or self.credit.steps >= START
            return is_affordable and self._affords_probe
        return self.length > 0

    @property
    def _may_draft(self) -> bool:
        """Whether the plain step is known well enough; it is measured again as speculation pays."""
        plain = self.costs.plain
        if plain.seconds is None:
            return False
        least, most = PLAIN_EVERY
        every = min(max(least, (self.credit.rate - 1.0) / PLAIN_LOSS), most)
        if plain.n_measured < MIN_PLAIN:
            every = least / 3
        return self._tokens_since_plain < every

    def _shares(self, pulled: Sequence[DraftToken]) -> list[float]:
        """P_1 to P_16, the guesses still to come taken to be as sure as the last one."""
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
        """The best length within the credit, or within another one.

        The cost of `n_sunk` guesses is spent anyway.
        """
        return best_length(
            shares,
            self._added_steps(len(shares), n_sunk),
            rate=self.credit.rate,
            credit=self.credit.steps if credit is None else credit,
            is_known=self.acceptance.is_known(self._name),
        )

    def _outcome(self, shares: Sequence[float], length: int) -> tuple[float, float]:
        """Tokens and plain steps of a round with a draft of that length."""
        return 1.0 + sum(shares[:length]), 1.0 + self._added_steps(length)[-1]

    def _added_steps(self, n_most: int, n_sunk: int = 0) -> list[float]:
        """What a round of each length takes beyond a plain step, as far as may be tried."""
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
        """Whether one guess in a batch costs less than more guesses that only the line judges."""
        step = self._current.cost.step or 0.0
        is_dear = self.costs.rows.steps(2) - 1.0 > step * (N_PASSING - 1)
        return self._current.is_cheap or not is_dear

    @property
    def _affords_probe(self) -> bool:
        if self._verifies_probe:
            return self._affords(1)
        return self._current.steps(N_PASSING) <= self.credit.steps

    def _affords(self, length: int) -> bool:
        return self._added_steps(length)[-1] <= self.credit.steps
