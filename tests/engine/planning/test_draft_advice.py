"""Whether a drafter pays: properties of the gain, and verdicts on known pairs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.units import GIB
from engine.model.catalog import find_entry
from engine.model.tensor_table import TokenReads, token_reads
from engine.planning.draft_advice import (
    MIN_GAIN,
    MachineKind,
    StepCosts,
    Worth,
    best_gain,
    should_use_speculation,
)

BIG, SMALL = TokenReads(8 * GIB), TokenReads(GIB // 2)
TWO_CORES = (1.0, 1.6, 2.2, 2.8, 3.2, 3.6, 4.0, 4.5)


def reads(name: str) -> TokenReads:
    return token_reads(find_entry(name).header("Q4_K_M"))


def test_the_gain_is_that_of_the_paper_where_batches_cost_one_step() -> None:
    costs = StepCosts(0.1, (1.0,) * 17)
    gain = best_gain(0.8, costs)
    by_formula = [(1 - 0.8 ** (k + 1)) / (0.2 * (0.1 * k + 1)) for k in range(1, 17)]
    assert gain.factor == pytest.approx(max(by_formula))
    assert gain.n_draft == 1 + by_formula.index(max(by_formula))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 2), st.floats(0, 2))
def test_more_right_guesses_or_cheaper_ones_never_gain_less(
    share: float, other_share: float, cost: float, other_cost: float
) -> None:
    low, high = sorted((share, other_share))
    cheap, dear = sorted((cost, other_cost))
    assert best_gain(low, StepCosts(dear, TWO_CORES)).factor <= (
        best_gain(high, StepCosts(cheap, TWO_CORES)).factor + 1e-12
    )


def test_a_misfit_gives_its_reason_and_no_figures() -> None:
    advice = should_use_speculation(BIG, SMALL, misfit="token 7 is 'a' here and 'b' there")
    assert advice.worth is Worth.MISFIT
    assert advice.reason == "token 7 is 'a' here and 'b' there"
    assert (advice.low, advice.high, advice.n_draft) == (None, None, 0)


def test_verdicts_on_known_pairs_agree_with_reports() -> None:
    """Llama 70B with 1B and Qwen 7B with 0.5B gain on GPUs; a mixture of 3B active does not."""
    pays = should_use_speculation(reads("llama-3.1-70b"), reads("llama-3.2-1b"), machine="gpu")
    assert pays.worth is Worth.USE
    pays = should_use_speculation(reads("qwen2.5-7b"), reads("qwen2.5-0.5b"), machine="gpu")
    assert pays.worth is Worth.USE
    sparse = should_use_speculation(reads("qwen3-30b-a3b"), reads("qwen3-0.6b"), machine="cpu")
    assert sparse.worth is Worth.NEVER


@given(st.floats(0.01, 2), st.sampled_from(["cpu", "gpu"]))
def test_a_verdict_follows_from_its_figures(share: float, machine: MachineKind) -> None:
    advice = should_use_speculation(BIG, TokenReads(int(8 * GIB * share)), machine=machine)
    assert advice.low is not None
    assert advice.high is not None
    assert advice.low.factor <= advice.high.factor
    assert (advice.worth is Worth.USE) == (advice.low.factor >= MIN_GAIN)
    assert (advice.worth is Worth.NEVER) == (advice.high.factor < MIN_GAIN)
    assert (advice.n_draft > 0) == (advice.high.n_draft > 0)
