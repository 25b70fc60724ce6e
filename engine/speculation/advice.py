"""Whether a drafter is worth loading, before anything is loaded."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from engine.model.token_reads import TokenReads
from engine.speculation.expected_costs import (
    CostRange,
    MachineKind,
    StepCosts,
    expected_costs,
)

CEILING_ACCEPTANCE = 0.95
"""More than any drafter reaches over a text that it does not copy."""
LEAST_GAIN = 1.05
"""A gain below this is not worth the memory, nor the days when it turns into a loss."""
DRAFT_ACCEPTANCE = (0.5, 0.85)
"""Chat to code, for a smaller model of the same family: reports in llama.cpp's issues 23052 and
23544 and vLLM's pull request 26504 lie between."""
READER_ACCEPTANCE = (0.1, 0.9)
"""Free prose to text that is copied, for what only reads the chat."""


class Worth(StrEnum):
    """What to do with a drafter."""

    USE = "use it"
    """It gains on every kind of text that is expected."""
    DEPENDS = "depends on the text"
    HARDLY = "hardly ever pays"
    """Only text that it guesses nearly all of gains."""
    NEVER = "never load it"
    """Nothing gains, however good the guesses."""
    MISFIT = "cannot draft"


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens in the time of a plain step at the length that gives most of them."""

    factor: float
    n_draft: int
    """0 where no length gains."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A verdict, what it rests on, and why."""

    worth: Worth
    reason: str
    low: Gain | None = None
    """With the lowest acceptance and the highest costs that are expected; None for a misfit."""
    high: Gain | None = None
    ceiling: Gain | None = None
    """With `CEILING_ACCEPTANCE` and the lowest costs."""

    @property
    def n_draft(self) -> int:
        """The length to begin with, in the middle of what is expected; 0 where none gains."""
        if self.low is None or self.high is None or not self.high.n_draft:
            return 0
        return max(1, round((self.low.n_draft + self.high.n_draft) / 2))


def should_use_speculation(
    target: TokenReads,
    draft: TokenReads | None,
    *,
    machine: MachineKind = "cpu",
    measured: CostRange | None = None,
    acceptance: tuple[float, float] | None = None,
    misfit: str | None = None,
) -> Advice:
    """Say whether a drafter pays, with the gain to expect and the reason in words.

    Args:
        target: What a step of the target reads.
        draft: What a step of the draft model reads; None for what only reads the chat.
        machine: Where both run, if nothing was measured there.
        measured: Costs as measured; expected from the sizes without.
        acceptance: Lowest and highest share of right guesses to expect, each given that those
            before it were right; the usual ones of the kind of drafter without.
        misfit: Why the draft's tokens are not the target's, None where they are.
    """
    if misfit is not None:
        return Advice(Worth.MISFIT, misfit)
    costs = measured or expected_costs(target, draft, machine)
    low_share, high_share = acceptance or (DRAFT_ACCEPTANCE if draft else READER_ACCEPTANCE)
    low, high = best_gain(low_share, costs.worst), best_gain(high_share, costs.best)
    ceiling = best_gain(CEILING_ACCEPTANCE, costs.best)
    worth = _worth(low, high, ceiling)
    reason = _size(target, draft) + _reason(worth, costs, (low, high, ceiling))
    return Advice(worth, reason, low, high, ceiling)


def best_gain(acceptance: float, costs: StepCosts) -> Gain:
    """Give the largest gain over plain steps, and its length; a factor of 1 where none gains.

    A draft of k tokens, each right with the same share if those before it are, commits
    `1 + a + ... + a^k` tokens (Leviathan et al. 2022, arXiv 2211.17192, equation 1) in the time of
    k guesses and a batch of k + 1 rows, which costs what it costs and not one step.
    """
    shares = accumulate([acceptance] * (len(costs.batch) - 1), lambda share, a: share * a)
    tokens, best = 1.0, Gain(1.0, 0)
    for n_draft, (share, batch) in enumerate(zip(shares, costs.batch[1:], strict=True), 1):
        tokens += share
        factor = tokens / (n_draft * costs.draft + batch)
        if factor > best.factor:
            best = Gain(factor, n_draft)
    return best


def _worth(low: Gain, high: Gain, ceiling: Gain) -> Worth:
    if ceiling.factor < LEAST_GAIN:
        return Worth.NEVER
    if high.factor < LEAST_GAIN:
        return Worth.HARDLY
    return Worth.USE if low.factor >= LEAST_GAIN else Worth.DEPENDS


def _reason(worth: Worth, costs: CostRange, gains: tuple[Gain, Gain, Gain]) -> str:
    low, high, ceiling = gains
    cost = _cost(costs)
    match worth:
        case Worth.NEVER:
            most = f"{ceiling.factor:.2f}x" if ceiling.n_draft else "nothing"
            return f"{cost}: even {CEILING_ACCEPTANCE:.0%} right guesses gain {most}"
        case Worth.HARDLY:
            return (
                f"{cost}: {high.factor:.2f}x at best on usual text, "
                f"{ceiling.factor:.2f}x with {CEILING_ACCEPTANCE:.0%} right guesses"
            )
        case Worth.DEPENDS:
            return f"{cost}: {low.factor:.2f}x to {high.factor:.2f}x by how often guesses are right"
        case _:
            return f"{cost}: {low.factor:.2f}x to {high.factor:.2f}x"


def _cost(costs: CostRange) -> str:
    low = costs.best.draft + costs.best.batch[1] - costs.best.batch[0]
    high = costs.worst.draft + costs.worst.batch[1] - costs.worst.batch[0]
    if f"{low:.2f}" == f"{high:.2f}":
        return f"a drafted token costs {low:.2f} of a step"
    return f"a drafted token costs {low:.2f} to {high:.2f} of a step"


def _size(target: TokenReads, draft: TokenReads | None) -> str:
    if draft is None or draft.nbytes() < target.nbytes():
        return ""
    times = f"{draft.nbytes() / max(1, target.nbytes()):.1f}"
    much = "as much" if times == "1.0" else f"{times} times as much"
    return f"the draft reads {much} a token as its target; "
