"""The choice of a cache kind: what holds for any figures, and the reasons in words."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.configuration import KVTypes
from engine.errors import PresetError
from engine.memory.kv_cache import bits_of
from engine.policy.choice import BudgetError, Candidate, TypeRequest, choose, is_coarser
from engine.policy.explain import explain
from engine.policy.gates import Gates
from engine.policy.known import Known
from engine.quality.records import Figure, Measurement, Report
from tests.engine.policy.reports import Q4, Q8, WHOLE, compared_with_f32, measured, report

PAIRS = (
    Q8, Q4,
    *map(KVTypes.parse, ("q8_0/q5_1", "q8_0/q4_0", "f16/q4_0", "q5_1/q5_1", "q4_0/q8_0")),
)  # fmt: skip
N_CTX = 4096


def size(pair: KVTypes) -> int:
    return round(N_CTX * 1024 * sum(bits_of(pair)) / 8)


losses = st.floats(0, 0.5, allow_nan=False)
rates = st.floats(1, 500, allow_nan=False)
reports = st.builds(
    report,
    st.dictionaries(st.sampled_from(PAIRS), losses),
    st.dictionaries(st.sampled_from((*PAIRS, WHOLE)), rates),
)
budgets = st.none() | st.integers(1, 2 * size(WHOLE))
all_gates = st.builds(
    Gates,
    max_nll_delta=losses,
    max_mean_kl=losses,
    max_p999_kl=losses,
    max_long_kl=losses,
    min_same_top=st.floats(0.5, 1),
)


def chosen(
    found: Report | None, gates: Gates, budget: int | None = None
) -> tuple[Candidate, ...] | None:
    try:
        return choose(found, TypeRequest(N_CTX, budget), gates, size)
    except BudgetError:
        return None


@given(reports, all_gates, budgets)
def test_no_choice_is_over_its_budget(found: Report, gates: Gates, budget: int | None) -> None:
    choice = chosen(found, gates, budget)
    if choice is not None and budget is not None:
        assert size(choice[0].pair) <= budget
        assert all(size(each.pair) <= budget for each in choice)


@given(reports, all_gates, budgets)
def test_no_figure_of_a_choice_is_beyond_its_gate(
    found: Report, gates: Gates, budget: int | None
) -> None:
    choice = chosen(found, gates, budget)
    if choice is None or choice[0].pair == WHOLE:
        return
    figures, noise = choice[0].measured, found.control
    assert figures is not None
    assert noise is not None

    def loss(figure: Callable[[Measurement], Figure]) -> float:
        return figure(figures).value - figure(noise).value

    assert loss(lambda row: row.scores.nll_delta) <= gates.max_nll_delta
    assert loss(lambda row: row.scores.kl_mean) <= gates.max_mean_kl
    assert loss(lambda row: row.scores.kl_p999) <= gates.max_p999_kl
    assert -loss(lambda row: row.scores.same_top) <= 1 - gates.min_same_top + 1e-12
    assert loss(lambda row: row.by_position[-1].scores.kl_mean) <= gates.max_long_kl


@given(reports, all_gates, all_gates, budgets)
def test_tighter_gates_never_choose_a_coarser_kind(
    found: Report, one: Gates, other: Gates, budget: int | None
) -> None:
    tight = Gates(
        max_nll_delta=min(one.max_nll_delta, other.max_nll_delta),
        max_mean_kl=min(one.max_mean_kl, other.max_mean_kl),
        max_p999_kl=min(one.max_p999_kl, other.max_p999_kl),
        max_long_kl=min(one.max_long_kl, other.max_long_kl),
        min_same_top=max(one.min_same_top, other.min_same_top),
    )
    before, after = chosen(found, one, budget), chosen(found, tight, budget)
    if before is None:
        assert after is None
    elif after is not None:
        assert not is_coarser(after[0].pair, before[0].pair)


@given(st.none() | st.builds(report, st.just({Q8: 0.0}), n_tokens=st.integers(0, 7999)), budgets)
def test_without_figures_to_choose_by_it_is_a_guess(
    found: Report | None, budget: int | None
) -> None:
    choice = chosen(found, Gates(), budget)
    if choice is not None:
        assert all(each.measured is None for each in choice)
        smaller = [pair for pair in (WHOLE, Q8, Q4) if budget is None or size(pair) <= budget]
        assert choice[0].pair == smaller[0]


def test_the_fastest_that_passes_is_chosen() -> None:
    found = report({Q8: 0.002, Q4: 0.2}, {Q8: 60.0, Q4: 90.0})
    choice = choose(found, TypeRequest(N_CTX), Gates(), size)
    assert [each.pair for each in choice] == [Q8, WHOLE]
    failed = Known(found).candidates[Q4]
    assert any("mean KL 0.2399 nats, limit" in each for each in failed.objections)


@given(st.floats(1, 500), st.floats(0.955, 1.045))
def test_rates_within_5_percent_of_the_references_are_one(rate: float, ratio: float) -> None:
    found = report({Q8: 0.002}, {WHOLE: rate, Q8: ratio * rate})
    assert choose(found, TypeRequest(N_CTX), Gates(), size)[0].pair == Q8


def test_where_nothing_smaller_passes_it_is_f16_with_the_reason() -> None:
    found = report({Q8: 0.4})
    choice = choose(found, TypeRequest(N_CTX), Gates(), size)
    assert choice[0].pair == WHOLE
    why = explain(Known(found), choice[0].pair)
    assert why.startswith("f16, because no smaller type passes the quality limits (q8_0: ")


def test_what_is_compared_with_f32_never_runs_with_it_unless_it_is_named() -> None:
    failed = compared_with_f32(report({Q4: 0.4}))
    choice = choose(failed, TypeRequest(N_CTX), Gates(), size)
    assert (choice[0].pair, choice[0].nbytes) == (WHOLE, size(WHOLE))
    assert choose(failed, TypeRequest(N_CTX, type_k="f32"), Gates(), size)[0].pair == KVTypes(
        "f32", "f32"
    )
    with pytest.raises(BudgetError, match="the smallest, f16, needs"):
        choose(failed, TypeRequest(N_CTX, size(WHOLE) - 1), Gates(), size)
    passed = compared_with_f32(report({Q8: 0.001, Q4: 0.4}, {Q8: 20.0}))
    assert choose(passed, TypeRequest(N_CTX), Gates(), size)[0].pair == Q8
    broken = compared_with_f32(report({WHOLE: 0.4, Q8: 0.4}))
    assert choose(broken, TypeRequest(N_CTX), Gates(), size)[0].pair == WHOLE


def test_a_kind_coarser_than_one_that_fails_is_not_chosen_however_good_it_looks() -> None:
    found = report({Q8: 0.4, Q4: 0.0001}, {Q4: 200.0})
    assert [each.pair for each in choose(found, TypeRequest(N_CTX), Gates(), size)] == [WHOLE]
    assert (
        "even q8_0, which has more bits, fails the limits" in Known(found).candidates[Q4].objections
    )


def test_an_unfinished_kind_refuses_no_other() -> None:
    bf16 = KVTypes("bf16", "bf16")
    found = report({bf16: 0.5, Q8: 0.001}, {Q8: 90.0})
    rows = [replace(e, is_complete=e.kind != bf16) for e in found.measurements]
    choice = choose(replace(found, measurements=tuple(rows)), TypeRequest(N_CTX), Gates(), size)
    assert [each.pair for each in choice] == [Q8, WHOLE]


def test_a_kind_that_llama_cpp_refuses_is_not_chosen() -> None:
    def refuses(pair: KVTypes) -> int:
        if pair == Q8:
            raise PresetError("V type q8_0 needs flash attention")
        return size(pair)

    choice = choose(report({Q8: 0.0}, {Q8: 99.0}), TypeRequest(N_CTX), Gates(), refuses)
    assert [each.pair for each in choice] == [WHOLE]


def test_a_budget_that_is_too_small_is_reported_with_one_that_works() -> None:
    message = r"4,096 tokens; the smallest, q8_0, needs .* about 2,048 tokens"
    with pytest.raises(BudgetError, match=message):
        choose(report({Q8: 0.001, Q4: 0.3}), TypeRequest(N_CTX, size(Q4)), Gates(), size)


def test_kinds_of_another_backend_are_left_out() -> None:
    found = report({Q8: 0.4})
    foreign = replace(measured(Q8, 0.0, 99.0), kind=KVTypes("kivi4", "kivi4"))
    both = replace(found, measurements=(*found.measurements, foreign))
    assert choose(both, TypeRequest(N_CTX), Gates(), size)[0].pair == WHOLE
