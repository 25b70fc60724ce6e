"""In which order the runs of a prompt come, so that a drift of the machine favours nobody."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.bench.policies import Policy


@dataclass(frozen=True, slots=True)
class Slot:
    """One reply to make; `group` is shared by a plain run and the runs that stand next to it."""

    group: int
    policy: Policy | None
    """None is plain decoding."""


def slots_of_pair(policies: Sequence[Policy], *, prompt: int, pair: int) -> tuple[Slot, ...]:
    """Give the order of one pair of one prompt: a plain run between every two policies.

    Each policy stands next to a plain run, once before and once behind it in two pairs that follow
    each other (the second is the first one backwards). Which policies share a plain run, and who
    comes first, moves on with every prompt and every second pair.

    Args:
        policies: What is compared, in its order.
        prompt: Number of the prompt in its set, from 0.
        pair: Number of the pair, from 0.
    """
    n = len(policies)
    start = (prompt + pair // 2) % n
    turned = [*policies[start:], *policies[:start]]
    slots: list[Slot] = []
    for group, first in enumerate(range(0, n, 2)):
        before, *behind = turned[first : first + 2]
        slots += [Slot(group, before), Slot(group, None), *(Slot(group, each) for each in behind)]
    return tuple(slots) if (prompt // 2 + pair) % 2 == 0 else tuple(reversed(slots))


def n_runs(n_policies: int, n_pairs: int) -> int:
    """How many replies one prompt takes."""
    return n_pairs * (n_policies + (n_policies + 1) // 2)
