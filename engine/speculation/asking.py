"""When a source of drafts is asked for its first guess."""

from dataclasses import dataclass, field
from math import ceil

from engine.speculation.drafting_cost import DraftingCost

CHEAP = 0.06
"""Plain steps that `N_SHADOW` guesses may cost for a source to be asked in passing."""
N_SHADOW = 4
N_TRIAL = 3
"""Guesses that a source makes whatever they cost, until their cost is known."""
SHADOW_LOSS = 0.004
"""Share of the time that a cheap source may take while it is off."""
WON_FOR = 48
"""Tokens for which a cheap source is asked in every round behind a draft of its that was worth it:
what it proposes differs from place to place, and only asking tells."""
FIRST_ROUNDS = 16
"""Tokens at the start of a reply for which a cheap source is asked in every round."""
PROBE_EVERY = (24, 192)
"""Tokens between two probes of a source that is off: at first and after a right one, and doubled
after wrong ones up to."""


@dataclass(slots=True)
class Asked:
    """What is known of one source in this reply."""

    drafting: DraftingCost
    confidence: float = 0.8
    """Of its last first guess."""
    n_behind: int | None = None
    """Tokens that it has to catch up with; None before its first guess of the reply."""
    tokens_off: int = 0
    probe_after: int = PROBE_EVERY[0]
    tokens_since_won: int = WON_FOR - FIRST_ROUNDS
    rounds_unasked: int = field(default=1_000_000)

    @property
    def is_known(self) -> bool:
        """Whether its cost was measured."""
        return self.drafting.step is not None

    @property
    def is_cheap(self) -> bool:
        """Whether it is asked in passing: guesses that nobody verifies still teach."""
        return self.is_known and self.drafting.steps(N_SHADOW, 0) <= CHEAP

    @property
    def n_to_probe(self) -> int:
        """Guesses that a probe asks for: a few where they cost little, to learn how little.

        One guess alone would count all of a source's fixed cost as its step, and a source that is
        cheap as dear; then it would hardly be asked again.
        """
        step = self.drafting.step or 0.0
        return N_TRIAL if step <= CHEAP and not self.drafting.is_split else 1

    @property
    def is_turn(self) -> bool:
        """Whether a cheap source is asked though it is off: so rarely that it hardly costs."""
        if self.tokens_since_won <= WON_FOR:
            return True
        return self.rounds_unasked >= ceil(self.drafting.steps(N_SHADOW, 0) / SHADOW_LOSS)

    @property
    def is_probe_due(self) -> bool:
        """Whether one guess is verified though none is expected to gain."""
        return self.tokens_off >= self.probe_after

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
        self.probe_after = (
            PROBE_EVERY[0] if was_right else min(2 * self.probe_after, PROBE_EVERY[1])
        )
