"""What pulling guesses from a predictor costs, learned from rounds."""

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

RECENT = 8
SETTLED_EVERY = 4
"""Drafts behind which the costs are worked out again once `RECENT` were timed."""
UNLIKE = 1.5
CAUGHT_UP = 20
"""Tokens behind the line up to which a draft counts as caught up: a longest round and its bonus."""
CATCH_UP_SHARE = 0.1
"""Share of a draft step that a token of a batch is taken to cost where no catch-up was measured;
low, since a guess that is too high is never put right."""


class KnownCost(NamedTuple):
    """What guessing costs in plain steps, as one run leaves it to the next."""

    fixed: float
    step: float
    catch_up: float
    silence: float


class DraftingCost:
    """Plain steps of a draft: a fixed part, one for each guess, one for each token caught up with.

    The step is a Theil-Sen slope (Sen 1968) of time over length, so stalled drafts do not move it.
    """

    def __init__(self, known: KnownCost | None = None) -> None:
        """Start from what an earlier run measured, or from nothing."""
        self._drafts: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._catch_ups: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._silent: deque[float] = deque(maxlen=RECENT)
        self._n_timed = 0
        self._fixed = 0.0
        self.step: float | None = None
        """Plain steps that one more guess takes, None before one was timed."""
        if known is not None:
            self._fixed, self.step = known.fixed, known.step
            self._catch_ups.append((1, known.catch_up))
            self._silent.append(known.silence)
            self._drafts.extend((n, known.fixed + known.step * n) for n in (1, 4))

    def known(self) -> KnownCost | None:
        """Give what a later run can start from, None before anything was timed."""
        if self.step is None:
            return None
        return KnownCost(self._fixed, self.step, self._catch_up_steps(), self.silence)

    def add(self, n_pulled: int, n_behind: int, n_steps: float) -> None:
        """Take the time of a draft that began `n_behind` tokens behind the line."""
        if n_behind > CAUGHT_UP and self.step is None:
            self.step = n_steps / (n_pulled + CATCH_UP_SHARE * n_behind)
        if n_behind > CAUGHT_UP:
            rest = n_steps - (self._fixed + (self.step or 0.0) * n_pulled)
            self._catch_ups.append((n_behind, max(rest, 0.0)))
            if rest > 0:
                return
        # One that caught up and took less than a draft is taken to cost says that this is too much.
        self._drafts.append((n_pulled, n_steps))
        self._n_timed += 1
        if self._n_timed <= RECENT or self._n_timed % SETTLED_EVERY == 0:
            self._settle()

    def _settle(self) -> None:
        self.step = max(_slope(self._drafts, self.silence), 0.0)
        left = median(steps - self.step * pulled for pulled, steps in self._drafts)
        self._fixed = max(left, 0.0)

    def add_silent(self, n_steps: float) -> None:
        """Take the time of a source that was asked and had nothing to say."""
        self._silent.append(n_steps)

    @property
    def is_split(self) -> bool:
        """Whether drafts of unlike lengths were timed, which tell the step from the fixed part."""
        lengths = [n_pulled for n_pulled, _ in self._drafts]
        return bool(lengths) and _are_unlike(min(lengths), max(lengths))

    @property
    def silence(self) -> float:
        """Plain steps that it costs to ask and hear nothing."""
        return median(self._silent) if self._silent else 0.0

    def catch_up(self, n_behind: int) -> float:
        """Give the cost of taking in that many tokens of the line."""
        return self._catch_up_steps() * n_behind

    def steps(self, n_pulled: int, n_behind: int) -> float:
        """Give the cost of a draft of that length; 0 before one was timed."""
        if self.step is None:
            return 0.0
        caught_up = self._catch_up_steps() * n_behind if n_behind > CAUGHT_UP else 0.0
        return self._fixed + self.step * n_pulled + caught_up

    def _catch_up_steps(self) -> float:
        if self._catch_ups:
            return median(steps / n_behind for n_behind, steps in self._catch_ups)
        return CATCH_UP_SHARE * (self.step or 0.0)


def _slope(drafts: Sequence[tuple[int, float]], silence: float) -> float:
    """Give the median slope of all pairs of unlike lengths.

    Without any it is the mean of a guess, less what asking takes where nothing is guessed.
    """
    slopes = [
        (right[1] - left[1]) / (right[0] - left[0])
        for left, right in combinations(sorted(drafts), 2)
        if _are_unlike(left[0], right[0])
    ]
    if slopes:
        return median(slopes)
    return median(max(n_steps - silence, 0.0) / n_pulled for n_pulled, n_steps in drafts)


def _are_unlike(shorter: int, longer: int) -> bool:
    """Tell lengths apart from a half more on: nearer ones tell more of the clock than the step."""
    return UNLIKE * shorter <= longer
