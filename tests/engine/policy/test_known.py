"""What a planner knows of a model's cache kinds: measured, guessed and unknown are never mixed."""

import pytest

from engine.configuration import KVTypes
from engine.policy.choice import Basis
from engine.policy.known import Known
from engine.policy.pairs import FAST_PAIRS, guessed_cost
from tests.engine.policy.reports import Q4, Q8, WHOLE, report


@pytest.mark.parametrize("pair", FAST_PAIRS)
def test_without_a_report_every_pair_is_guessed(pair: KVTypes) -> None:
    standing = Known().standing(pair)
    assert (standing.basis, standing.short, standing.passes) == (Basis.GUESSED, "guess", None)


def test_with_a_report_its_pairs_are_measured_and_all_others_unknown() -> None:
    known = Known(report({Q8: 0.002}))
    assert known.standing(Q8).basis is Basis.MEASURED
    assert known.standing(Q8).text == "same top token 99.6 %, mean KL 0.0020"
    assert known.standing(WHOLE).basis is Basis.MEASURED
    assert known.standing(Q4).basis is Basis.UNKNOWN
    assert known.standing(Q4).text == "this type is not among the 2 measured types"


def test_a_pair_that_fails_names_the_figure() -> None:
    standing = Known(report({Q8: 0.4})).standing(Q8)
    assert standing.passes is False
    assert "limit" in standing.text


def test_figures_of_too_little_text_are_shown_without_a_verdict_and_do_not_weigh() -> None:
    known = Known(report({Q8: 0.002}, n_tokens=3000))
    standing = known.standing(Q8)
    assert (standing.basis, standing.passes) == (Basis.MEASURED, None)
    assert standing.text.endswith("3,000 of 8,000 required tokens")
    assert known.allowed_types() == ()
    assert known.costs((WHOLE, Q8)) == (guessed_cost(WHOLE), guessed_cost(Q8))


def test_allowed_pairs_come_the_finest_first() -> None:
    known = Known(report({Q4: 0.005, Q8: 0.002, KVTypes("q5_1", "q5_1"): 0.4}))
    assert known.allowed_types() == (WHOLE, Q8)  # q4_0 is coarser than q5_1, which fails
    known = Known(report({Q4: 0.005, Q8: 0.002}))
    assert known.allowed_types() == (WHOLE, Q8, Q4)


def test_costs_are_measured_for_all_or_guessed_for_all() -> None:
    known = Known(report({Q8: 0.002}))
    measured = known.costs((WHOLE, Q8))
    assert measured[0] == 0.0 < measured[1] != guessed_cost(Q8)
    assert known.costs((WHOLE, Q8, Q4)) == tuple(map(guessed_cost, (WHOLE, Q8, Q4)))
