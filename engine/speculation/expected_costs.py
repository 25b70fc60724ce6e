"""What drafting and verifying cost, in steps of the target: measured, or expected of the sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.configuration import MAX_DRAFT
from engine.model.token_reads import TokenReads

MachineKind = Literal["cpu", "gpu"]

ROW_STEPS: dict[MachineKind, tuple[float, float]] = {"cpu": (0.12, 0.55), "gpu": (0.015, 0.06)}
"""What a further row of a batch adds to a step beside what it reads, at best and at worst: on
processors from many cores with wide vectors to two cores, where 2, 3, 4 and 8 rows of a 135M model
took 1.6, 2.2, 2.8 and 4.5 steps; on GPUs from large models to small ones."""
DRAFT_SLOWER = 1.5
DRAFT_OVERHEAD = 0.05
"""A step of a small model takes longer than its share of bytes: at worst that share half again and
a twentieth of a target's step (1.5B drafted for by 0.5B took 0.48 steps for 0.33 of the bytes on a
T4, by flashspec's README)."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Costs in steps of the target, as a step of it alone is one."""

    draft: float
    """One drafted token; 0 where text is only looked up."""
    batch: tuple[float, ...]
    """Verifying batches of 1 to `MAX_DRAFT + 1` rows; the first is 1."""


@dataclass(frozen=True, slots=True)
class CostRange:
    """Costs at best and at worst; the same twice where they were measured."""

    best: StepCosts
    worst: StepCosts


def expected_costs(target: TokenReads, draft: TokenReads | None, machine: MachineKind) -> CostRange:
    """Give the costs that sizes and the kind of machine let expect; no draft reads text only."""
    share = 0.0 if draft is None else draft.nbytes() / max(1, target.nbytes())
    worst_share = 0.0 if draft is None else DRAFT_SLOWER * share + DRAFT_OVERHEAD
    low, high = ROW_STEPS[machine]
    return CostRange(
        StepCosts(share, _batch(target, low)), StepCosts(worst_share, _batch(target, high))
    )


def measured_costs(draft_step: float, batch_steps: Sequence[float]) -> CostRange:
    """Give measured costs; a curve shorter than the longest draft limits the length."""
    costs = StepCosts(draft_step, tuple(batch_steps[: MAX_DRAFT + 1]))
    return CostRange(costs, costs)


def _batch(target: TokenReads, row_steps: float) -> tuple[float, ...]:
    one = max(1, target.nbytes())
    return tuple(
        target.nbytes(n_rows) / one + row_steps * (n_rows - 1) for n_rows in range(1, MAX_DRAFT + 2)
    )
