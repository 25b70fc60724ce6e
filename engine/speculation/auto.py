"""How many to draft, decided by the gain that measured costs and shares promise."""

from collections.abc import Sequence
from math import inf

from engine.configuration import MAX_DRAFT
from engine.speculation.asking import N_SHADOW, N_TRIAL, Asked
from engine.speculation.budget import START
from engine.speculation.controller import RoundOutcome
from engine.speculation.drafting_cost import DraftingCost
from engine.speculation.experience import Experience
from engine.speculation.gain import best_length
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.draft_model import RESTART

PLAIN_LOSS = 0.005
"""Share of the time that goes into plain steps which only measure."""
PLAIN_EVERY = (24, 1024)
LEAST_PLAIN = 3
"""Plain steps of this run below which they are measured more often."""
OUTLOOK = 128
"""Tokens that a reply is taken to go on for where a draft model would have to catch up first."""
WELL_KNOWN = 16
"""Examined guesses of a source from which its shares are trusted beyond the credit."""
REPLAN_EVERY = 8
"""Plain rounds before it is said again what is likely to come: they change what that rests on
slowly, and whether a round drafts is decided by its own guesses."""
FIRST_OUTLOOK = 4096
"""Tokens over which the first trial of a source is paid for, whatever it costs."""


class AutoController:
    """Drafts another token while it raises the tokens per second (renewal-reward argument).

    With the measured curve T in plain steps, shares P_i that the first i guesses are right, and
    the rate r in tokens a step, a draft of k tokens gains P_1 + ... + P_k - r (T(k + 1) - 1 + its
    drafting); the k with the largest gain is verified, and where none gains the round is plain.
    A source whose guesses cost time is asked for the next one only while some longer draft still
    gains: the rule of SpecDec++ (Huang et al. 2024, arXiv 2405.19715) with a measured threshold,
    looking ahead over kinks of the curve.

    Losses are bounded by `SlowdownBudget`. Cheap sources are asked in plain rounds too, and what
    the line then says counts as examined; others are probed ever more rarely.
    """

    def __init__(self, experience: Experience) -> None:
        self._known = experience
        self._sources: dict[str, Asked] = {}
        self._at = self._turn_to("")
        self._asked: list[str] = []
        self._n_wanted = MAX_DRAFT
        self._tokens_since_plain = 0
        self._is_behind_draft = False
        self._has_caught_up = False
        self._n_caught_up = 0
        self._likely: dict[str, int] = {}
        """The best length of each source that was asked for since something new was learned."""
        self._rounds_planned = 0
        self.length = 0
        self.reason = "auto: measuring the plain step first"

    # --- before and while drafting ---

    def wants(self, source: str) -> bool:
        """Whether a source is to make its first guess of the round."""
        is_asked = self._is_worth_asking(self._turn_to(source))
        if is_asked:
            self._asked.append(source)
        return is_asked

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        """Whether one more guess is worth being made behind those."""
        source = self._at
        if source.is_cheap:
            if len(pulled) == 1:
                is_worth_it = self._best(self._shares(pulled), n_sunk=MAX_DRAFT) > 0
                self._n_wanted = MAX_DRAFT if is_worth_it else N_SHADOW
            return len(pulled) < self._n_wanted
        if not source.is_known:
            return len(pulled) < N_TRIAL
        if source.is_probe_due:
            return len(pulled) < source.n_to_probe
        if not self._may_draft or len(pulled) >= min(MAX_DRAFT, self._known.curve.reach - 1):
            return False
        return self._best(self._shares(pulled), n_sunk=len(pulled)) > len(pulled)

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        """The number of guesses that go into the batch; 0 makes a plain round."""
        source = self._at
        source.confidence = pulled[0].confidence
        if not self._may_draft:
            return 0
        n_best = self._best(self._shares(pulled)[: len(pulled)], n_sunk=len(pulled))
        if n_best:
            source.tokens_since_won = 0
        elif source.is_probe_due and self._affords(1) and self._is_worth_a_probe(source):
            return 1
        return n_best

    def affords_catch_up(self, n_tokens: int) -> bool:
        """Tell whether a draft model is to take in all of the line that it missed.

        It costs once and is worth what better drafts may win in the rest of the reply, as far as
        is known; what it costs is charged to the budget token by token.
        """
        cost = self._at.drafting.catch_up(n_tokens)
        if not self._at.is_known or self._has_caught_up:
            return cost <= self._known.budget.credit and self._at.is_known
        shares = self._shares([])
        length = self._best(shares, n_sunk=0)
        if not length:
            return False
        tokens = 1.0 + sum(shares[:length])
        steps = 1.0 + self._added_steps(length)[-1]
        is_worth_it = OUTLOOK * (1.0 - steps / tokens) > cost
        if is_worth_it:
            self._n_caught_up = n_tokens
            self._has_caught_up = True
            self._known.owe(cost, OUTLOOK)
        return is_worth_it

    # --- after the round ---

    def observe(self, outcome: RoundOutcome) -> None:
        """Take the outcome of the round."""
        self._known.acceptance.add(outcome.examined)
        self._time(outcome)
        is_due = outcome.n_verified or self._is_behind_draft or not self._rounds_planned
        if is_due or outcome.n_drafted or outcome.examined:
            self._likely.clear()
        self._count(outcome)
        self._asked = []
        self._n_caught_up = 0
        if is_due:
            self._rounds_planned = REPLAN_EVERY
            self._plan()
        else:
            self._rounds_planned -= 1

    def _time(self, outcome: RoundOutcome) -> None:
        """Learn the costs of the round and settle it with the budget.

        What such rounds take is charged, not what this one took: a stall is nobody's fault.
        """
        curve = self._known.curve
        if outcome.verify_s is None:
            return
        curve.add(1 + outcome.n_verified, outcome.verify_s)
        plain_s = curve.plain_s
        if plain_s is None:
            return
        n_steps = curve.steps(1 + outcome.n_verified)
        n_steps += self._switching if outcome.n_verified else 0.0
        n_steps += self._time_drafting(outcome, outcome.draft_s / plain_s)
        self._known.add_round(outcome.n_emitted, n_steps)

    def _time_drafting(self, outcome: RoundOutcome, n_steps: float) -> float:
        """Share the time of guessing out to who was asked; gives what such asking takes."""
        if not self._asked:
            return 0.0
        *silent, last = (self._sources[name] for name in self._asked)
        charged = sum(source.drafting.silence for source in silent)
        own = max(n_steps - charged, 0.0)
        if not outcome.n_drafted:
            if last.n_behind is not None:
                last.drafting.add_silent(own)
            return charged + last.drafting.silence
        if last.n_behind is None:
            # A first guess catches up with a line of unknown overlap: its time tells nothing.
            if not last.is_known:
                last.drafting.add(outcome.n_drafted, RESTART, own)
                self._known.owe(own, FIRST_OUTLOOK)
            return charged
        n_missed = self._n_caught_up or min(last.n_behind, RESTART)
        last.drafting.add(outcome.n_drafted, n_missed, own)
        n_missed = 0 if self._n_caught_up else n_missed
        return charged + last.drafting.steps(outcome.n_drafted, n_missed)

    def _count(self, outcome: RoundOutcome) -> None:
        self._is_behind_draft = outcome.n_verified > 0
        self._tokens_since_plain = self._tokens_since_plain + outcome.n_emitted
        if not outcome.n_verified:
            self._tokens_since_plain = 0
        drafted = self._at_name if outcome.n_drafted else None
        for name, source in self._sources.items():
            was_asked = name in self._asked
            source.end_round(outcome.n_emitted, was_asked=was_asked)
            if (outcome.n_verified and name == drafted) or (was_asked and not source.is_cheap):
                if source.is_probe_due:
                    source.end_probe(was_right=outcome.n_accepted > 0)
                source.tokens_off = 0

    def _plan(self) -> None:
        """Say what the next round is likely to be, and why."""
        if not self._may_draft:
            self.length, self.reason = 0, "auto: one plain step, to measure what drafts save"
            self._rounds_planned = 0
            return
        shares = self._shares([])
        self.length = self._likely[self._at_name] = self._best(shares, n_sunk=0)
        if self.length:
            self._at.wakes()
            self.reason = f"auto: {self._outcome(shares, self.length)}"
            return
        length = self._best(shares, n_sunk=0, credit=inf)
        if length:
            self.reason = f"off: {self._outcome(shares, length)}, but too many were wrong lately"
            return
        cost = self._known.curve.steps(2) - 1.0 + self._steps_of(1) + self._switching
        n_right, n_tried = self._known.acceptance.tried(self._at_name)
        self.reason = (
            f"off: a drafted token costs {cost:.2f} steps, taken as {shares[0]:.0%} right "
            f"({n_right:,} of {n_tried:,} guesses)"
        )

    def _outcome(self, shares: Sequence[float], length: int) -> str:
        tokens, steps = 1.0 + sum(shares[:length]), 1.0 + self._added_steps(length)[-1]
        return f"{length} drafted should give {tokens:.1f} tokens for {steps:.1f} steps"

    # --- what is known ---

    def _turn_to(self, name: str) -> Asked:
        """Reckon with the costs of a source; a predictor may ask several."""
        source = self._sources.get(name)
        if source is None:
            source = Asked(self._known.drafting.setdefault(name, DraftingCost()))
            self._sources[name] = source
        self._at, self._at_name = source, name
        return source

    def _is_worth_asking(self, source: Asked) -> bool:
        if not source.is_known:
            return self._known.curve.plain_s is not None
        if source.is_cheap:
            return source.is_turn or self._likely_length() > 0
        if not self._may_draft:
            return False
        if source.is_probe_due:
            is_affordable = source.n_behind is not None or self._known.budget.allows(START)
            return is_affordable and self._affords(1)
        return self._likely_length() > 0

    @property
    def _may_draft(self) -> bool:
        """Whether the plain step is known well enough; it is measured again as speculation pays."""
        curve = self._known.curve
        if curve.plain_s is None:
            return False
        least, most = PLAIN_EVERY
        won = self._known.tokens_per_step - 1.0
        every = min(max(least, won / PLAIN_LOSS), most)
        if curve.plain.n_measured < LEAST_PLAIN:
            every = least / 3
        return self._tokens_since_plain < every

    def _is_worth_a_probe(self, source: Asked) -> bool:
        """Whether a draft would pay if batches cost half of what they are taken to cost.

        A source that costs time is only known by probes; of a cheap one the shares are known.
        """
        cost = self._known.curve.steps(2) - 1.0 + self._switching
        return not source.is_cheap or self._shares([])[0] > cost / 2

    def _shares(self, pulled: Sequence[DraftToken]) -> list[float]:
        """Give P_1 to P_16, the guesses still to come taken to be as sure as the last one."""
        guesses = [(self._at_name, guess.confidence) for guess in pulled]
        following = guesses[-1] if guesses else (self._at_name, self._at.confidence)
        guesses += [following] * (MAX_DRAFT - len(guesses))
        return self._known.acceptance.products(guesses)

    def _likely_length(self) -> int:
        """Give the best length of a draft of the source that is reckoned with, not yet guessed."""
        length = self._likely.get(self._at_name)
        if length is None:
            length = self._likely[self._at_name] = self._best(self._shares([]), n_sunk=0)
        return length

    def _best(self, shares: Sequence[float], *, n_sunk: int, credit: float | None = None) -> int:
        """Give the best length within the budget, or within another credit.

        The cost of `n_sunk` guesses is spent anyway.
        """
        return best_length(
            shares,
            self._added_steps(len(shares), n_sunk),
            rate=self._known.tokens_per_step,
            credit=self._known.budget.credit if credit is None else credit,
            is_known=self._known.acceptance.n_seen(self._at_name) >= WELL_KNOWN,
        )

    def _added_steps(self, n_most: int, n_sunk: int = 0) -> list[float]:
        """Give what a round of each length takes beyond a plain step, as far as may be tried."""
        curve = self._known.curve
        batch = curve.all_steps
        lengths = range(1, min(n_most, curve.reach - 1) + 1)
        plain = 1.0 - self._switching
        if n_sunk >= n_most:
            return [batch[length] - plain for length in lengths]
        first, step = self._steps_of(1), self._at.drafting.step or 0.0
        sunk = self._steps_of(n_sunk)
        return [
            batch[length] - plain + (first + step * (length - 1) - sunk if length > n_sunk else 0.0)
            for length in lengths
        ]

    @property
    def _switching(self) -> float:
        """What going over to drafts costs; while drafts follow one another it is paid once."""
        return 0.0 if self._is_behind_draft else self._known.curve.switching

    def _affords(self, length: int) -> bool:
        return self._known.budget.allows(self._added_steps(length)[-1])

    def _steps_of(self, n_pulled: int) -> float:
        """Give the cost of the coming draft in plain steps."""
        if not n_pulled:
            return 0.0
        n_missed = RESTART if self._at.n_behind is None else min(self._at.n_behind, RESTART)
        return self._at.drafting.steps(n_pulled, n_missed)
