"""How many to draft, decided by the gain that measured costs and shares promise."""

from collections.abc import Sequence

from engine.configuration import MAX_DRAFT
from engine.speculation.budget import START
from engine.speculation.controller import RoundOutcome
from engine.speculation.drafting_cost import DraftingCost
from engine.speculation.experience import Experience
from engine.speculation.gain import best_length
from engine.speculation.predictors.base import DraftToken

FREE = 0.01
"""Plain steps that `N_SHADOW` guesses may cost and still be made in rounds that verify none."""
N_SHADOW = 4
N_TRIAL = 3
"""Guesses that a source makes whatever they cost, until their cost is known."""
PLAIN_LOSS = 0.005
"""Share of the time that goes into plain steps which only measure."""
PLAIN_EVERY = (24, 1024)
PROBE_EVERY = (24, 192)
"""Tokens between two probes of a source that is off: at first and after a right one, and doubled
after wrong ones up to."""


class AutoController:
    """Drafts another token while it raises the tokens per second (renewal-reward argument).

    With the measured curve T in plain steps, shares P_i that the first i guesses are right, and
    the rate r in tokens a step, a draft of k tokens gains P_1 + ... + P_k - r (T(k + 1) - 1 + its
    drafting); the k with the largest gain is verified, and where none gains the round is plain.
    A source whose guesses cost time is asked for the next one only while some longer draft still
    gains: the rule of SpecDec++ (Huang et al. 2024, arXiv 2405.19715) with a measured threshold,
    looking ahead over kinks of the curve.

    Losses are bounded by `SlowdownBudget`. Free sources go on guessing in plain rounds, and what
    the line then says counts as examined; others are probed ever more rarely.
    """

    def __init__(self, source: str, experience: Experience) -> None:
        self._source = source
        self._known = experience
        self._last_source = source
        self._drafting = experience.drafting.setdefault(source, DraftingCost())
        self._is_free = self._costs_nothing()
        self._confidence = 0.5
        self._n_behind: int | None = None
        self._tokens_off = 0
        self._probe_after = PROBE_EVERY[0]
        self._tokens_since_plain = 0
        self.length = 0
        self.reason = "auto: measuring the plain step first"

    # --- before and while drafting ---

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        """Tell whether one more guess is worth being made behind those."""
        if pulled:
            self._turn_to(pulled[-1].source or self._source)
        if self._is_free:
            return len(pulled) < (MAX_DRAFT if self.length else N_SHADOW)
        if self._drafting.step_s is None and self._known.curve.plain_s is not None:
            return len(pulled) < N_TRIAL
        if not self._may_draft or len(pulled) >= min(MAX_DRAFT, self._known.curve.reach - 1):
            return False
        if self._is_probe_due:
            is_affordable = self._n_behind is not None or self._known.budget.allows(START)
            return not pulled and is_affordable and self._affords(1)
        shares = self._shares(pulled)
        return self._best(shares, n_sunk=len(pulled)) > len(pulled)

    def n_worth_verifying(self, pulled: Sequence[DraftToken]) -> int:
        """Give how many of the guesses go into the batch; 0 makes a plain round."""
        if not pulled:
            return 0
        self._confidence = pulled[0].confidence
        self._turn_to(pulled[0].source or self._source)
        if not self._may_draft:
            return 0
        n_best = self._best(self._shares(pulled)[: len(pulled)], n_sunk=len(pulled))
        if not n_best and self._is_probe_due and self._affords(1) and self._is_worth_a_probe:
            return 1
        return n_best

    # --- after the round ---

    def observe(self, outcome: RoundOutcome) -> None:
        self._known.acceptance.add(self._source, outcome.examined)
        self._time(outcome)
        self._count(outcome)
        self._is_free = self._costs_nothing()
        self._plan()

    def _time(self, outcome: RoundOutcome) -> None:
        """Learn the costs of the round and settle it with the budget.

        What such rounds take is charged, not what this one took: a stall is nobody's fault.
        """
        curve = self._known.curve
        n_behind, self._n_behind = self._n_behind, self._behind(outcome)
        if outcome.verify_s is None:
            return
        curve.add(1 + outcome.n_drafted, outcome.verify_s)
        plain_s = curve.plain_s
        if plain_s is None:
            return
        n_steps = curve.steps(1 + outcome.n_drafted)
        if outcome.n_pulled and n_behind is not None:
            self._drafting.add(outcome.n_pulled, n_behind, outcome.draft_s)
            n_steps += self._drafting.seconds(outcome.n_pulled, n_behind) / plain_s
        elif self._is_probe_due:
            n_steps += outcome.draft_s / plain_s
        self._known.add_round(outcome.n_emitted, n_steps)

    def _behind(self, outcome: RoundOutcome) -> int | None:
        """Give how far the source is behind; None before the first guess of a reply.

        A first guess catches up with a prompt of unknown overlap, so its time tells nothing.
        """
        if outcome.n_pulled:
            return outcome.n_emitted
        return None if self._n_behind is None else self._n_behind + outcome.n_emitted

    def _count(self, outcome: RoundOutcome) -> None:
        self._tokens_off += outcome.n_emitted
        self._tokens_since_plain += outcome.n_emitted
        if not outcome.n_drafted:
            self._tokens_since_plain = 0
        if outcome.n_drafted or (outcome.n_pulled and not self._is_free):
            if self._is_probe_due:
                self._probe_after = self._next_probe(was_right=outcome.n_accepted > 0)
            self._tokens_off = 0

    def _next_probe(self, *, was_right: bool) -> int:
        return PROBE_EVERY[0] if was_right else min(2 * self._probe_after, PROBE_EVERY[1])

    def _plan(self) -> None:
        """Say what the next round is likely to be, and why."""
        if not self._may_draft:
            self.length, self.reason = 0, "auto: one plain step, to measure what drafts save"
            return
        shares = self._shares([])
        self.length = self._best(shares, n_sunk=0)
        if self.length:
            self._probe_after = PROBE_EVERY[0]
            self._tokens_off = 0
            cost = self._known.curve.steps(1 + self.length) + self._steps_of(self.length)
            tokens = 1.0 + sum(shares[: self.length])
            self.reason = (
                f"auto: {self.length} drafted give {tokens:.1f} tokens for {cost:.1f} steps"
            )
            return
        cost = self._known.curve.steps(2) - 1.0 + self._steps_of(1)
        self.reason = (
            f"off: a drafted token costs {cost:.2f} of a step and is right {shares[0]:.0%} of the "
            "time"
        )

    # --- what is known ---

    def _turn_to(self, source: str) -> None:
        """Reckon with the costs of a source; a predictor may ask several."""
        if source != self._last_source:
            self._last_source = source
            self._drafting = self._known.drafting.setdefault(source, DraftingCost())
            self._is_free = self._costs_nothing()

    def _costs_nothing(self) -> bool:
        return self._drafting.step_s is not None and self._steps(N_SHADOW, 0) <= FREE

    @property
    def _may_draft(self) -> bool:
        """Whether the plain step is known well enough; it is measured again as speculation pays."""
        curve = self._known.curve
        if curve.plain_s is None:
            return False
        least, most = PLAIN_EVERY
        won = self._known.tokens_per_step - 1.0
        every = min(max(least, won / PLAIN_LOSS), most)
        if curve.n_plain_samples < 3:
            every = least / 3
        return self._tokens_since_plain < every

    @property
    def _is_probe_due(self) -> bool:
        return self._tokens_off >= self._probe_after

    @property
    def _is_worth_a_probe(self) -> bool:
        """Whether a draft would pay if batches cost half of what they are taken to cost.

        A source that costs time is only known by probes; of a free one the shares are known.
        """
        cost = self._known.curve.steps(2) - 1.0
        return not self._is_free or self._shares([])[0] > cost / 2

    def _shares(self, pulled: Sequence[DraftToken]) -> list[float]:
        """Give P_1 to P_16, the guesses still to come taken to be as sure as the last one."""
        guesses = [(guess.source or self._source, guess.confidence) for guess in pulled]
        following = guesses[-1] if guesses else (self._last_source, self._confidence)
        guesses += [following] * (MAX_DRAFT - len(guesses))
        return self._known.acceptance.products(guesses)

    def _best(self, shares: Sequence[float], *, n_sunk: int) -> int:
        """Give the best length within the budget; the cost of `n_sunk` guesses is spent anyway."""
        return best_length(
            shares,
            self._added_steps(len(shares), n_sunk),
            rate=self._known.tokens_per_step,
            credit=self._known.budget.credit,
        )

    def _added_steps(self, n_most: int, n_sunk: int = 0) -> list[float]:
        """Give what a round of each length takes beyond a plain step, as far as may be tried."""
        batch = self._known.curve.all_steps
        sunk = self._steps_of(n_sunk)
        return [
            batch[length] - 1.0 + (self._steps_of(length) - sunk if length > n_sunk else 0.0)
            for length in range(1, min(n_most, self._known.curve.reach - 1) + 1)
        ]

    def _affords(self, length: int) -> bool:
        return self._known.budget.allows(self._added_steps(length)[-1])

    def _steps_of(self, n_pulled: int) -> float:
        """Give the cost of the coming draft in plain steps."""
        return self._steps(n_pulled, self._n_behind or 0)

    def _steps(self, n_pulled: int, n_behind: int) -> float:
        plain_s = self._known.curve.plain_s
        if not n_pulled or plain_s is None:
            return 0.0
        return self._drafting.seconds(n_pulled, n_behind) / plain_s
