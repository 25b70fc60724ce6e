"""How much a kept state is worth its bytes: what is worth least leaves a full tier first."""

import math
from typing import Protocol

HALF_LIFE_S = 3600.0
"""Time without use after which a state counts half."""
LEAST_RECOMPUTE_S = 1e-6
"""Stands for a time that was not measured."""


class Weighable(Protocol):
    """What a state's worth is made of."""

    @property
    def recompute_s(self) -> float: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def n_uses(self) -> int: ...

    @property
    def used_at(self) -> float: ...


def worth(state: Weighable, now: float) -> float:
    """Give the logarithm (base 2) of seconds spared per byte, weighted by uses and by age.

    Only comparing two of them at one moment means something. Uses x cost / bytes is the value of
    GreedyDual-Size-Frequency (Cherkasova 1998, HP Labs HPL-98-69R1). That algorithm ages by a
    clock that rises with each eviction and lives in one process; here age itself counts,
    halving the value every `HALF_LIFE_S`, so that restarts and other processes agree.
    """
    cost_s = max(state.recompute_s, LEAST_RECOMPUTE_S)
    value = (1 + state.n_uses) * cost_s / max(state.nbytes, 1)
    return math.log2(value) - max(now - state.used_at, 0.0) / HALF_LIFE_S
