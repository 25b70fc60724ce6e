"""The order of the runs, without a model."""

from collections import Counter
from collections.abc import Sequence

import pytest

from app.bench.policies import Policy
from app.bench.schedule import Slot, n_runs, slots_of_pair
from engine.configuration import ControllerName, PredictorName


def policies(n: int) -> list[Policy]:
    return [Policy(PredictorName.LOOKUP, ControllerName.FIXED, 1 + i) for i in range(n)]


def order(slots: Sequence[Slot]) -> list[int]:
    return [slot.policy.n_draft or 0 if slot.policy else 0 for slot in slots]


def test_a_plain_run_stands_between_two_policies() -> None:
    assert order(slots_of_pair(policies(4), prompt=0, pair=0)) == [1, 0, 2, 3, 0, 4]


def test_the_second_pair_is_the_first_one_backwards() -> None:
    assert order(slots_of_pair(policies(4), prompt=0, pair=1)) == [4, 0, 3, 2, 0, 1]


def test_an_odd_policy_has_a_plain_run_of_its_own() -> None:
    assert order(slots_of_pair(policies(3), prompt=0, pair=0)) == [1, 0, 2, 3, 0]


def test_one_policy_alternates_with_plain() -> None:
    runs = [order(slots_of_pair(policies(1), prompt=0, pair=pair)) for pair in range(2)]
    assert runs == [[1, 0], [0, 1]]


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("prompt", range(5))
def test_each_policy_runs_once_a_pair_right_beside_the_plain_run_of_its_group(
    n: int, prompt: int
) -> None:
    for pair in range(4):
        slots = slots_of_pair(policies(n), prompt=prompt, pair=pair)
        assert Counter(slot.policy for slot in slots if slot.policy) == Counter(policies(n))
        for index, slot in enumerate(slots):
            if slot.policy is not None:
                beside = [*slots[max(0, index - 1) : index], *slots[index + 1 : index + 2]]
                assert Slot(slot.group, None) in beside


@pytest.mark.parametrize("n", range(1, 9))
def test_two_pairs_put_each_policy_once_before_and_once_behind_its_plain_run(n: int) -> None:
    for prompt in range(6):
        for policy in policies(n):
            assert sum(is_before(policy, n, prompt, pair) for pair in (0, 1)) == 1


@pytest.mark.parametrize("n", [2, 4, 6, 8, 12])
def test_with_one_pair_the_prompts_balance_the_order(n: int) -> None:
    for policy in policies(n):
        assert sum(is_before(policy, n, prompt, pair=0) for prompt in range(4)) == 2


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_who_comes_first_changes_with_the_prompts(n: int) -> None:
    orders = [order(slots_of_pair(policies(n), prompt=prompt, pair=0)) for prompt in range(4 * n)]
    assert len({first for first, *_ in orders}) > n / 2


def is_before(policy: Policy, n: int, prompt: int, pair: int) -> bool:
    slots = slots_of_pair(policies(n), prompt=prompt, pair=pair)
    index = next(i for i, slot in enumerate(slots) if slot.policy == policy)
    plain = slots.index(Slot(slots[index].group, None))
    return index < plain


@pytest.mark.parametrize(("n", "n_pairs", "expected"), [(1, 1, 2), (4, 1, 6), (3, 2, 10)])
def test_the_number_of_runs_is_known_before(n: int, n_pairs: int, expected: int) -> None:
    planned = [slots_of_pair(policies(n), prompt=0, pair=pair) for pair in range(n_pairs)]
    assert n_runs(n, n_pairs) == sum(map(len, planned)) == expected
