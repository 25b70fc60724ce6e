import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from engine.configuration import SamplingSettings
from engine.errors import DecodeError, LogitsError
from engine.sampling import Sampler, gumbel

LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 3.0], dtype=np.float32)
PLAIN = SamplingSettings(temperature=1.0)


def probs(settings: SamplingSettings, history: tuple[int, ...] = ()) -> dict[int, float]:
    found = Sampler(settings, seed=1).distribution(LOGITS, history)
    return dict(zip(found.tokens.tolist(), found.probs.tolist(), strict=True))


def test_temperature_zero_is_a_one_hot_at_the_largest_logit() -> None:
    assert probs(SamplingSettings()) == {4: 1.0}


def test_temperature_one_is_the_softmax() -> None:
    weights = [math.exp(value) for value in LOGITS.tolist()]
    expected = {token: weight / sum(weights) for token, weight in enumerate(weights)}
    assert probs(PLAIN) == pytest.approx(expected)


def test_temperature_divides_the_logits() -> None:
    found = probs(replace(PLAIN, temperature=0.5))
    assert found[4] / found[0] == pytest.approx(math.exp(2.0))


def test_top_k_keeps_the_k_likeliest_and_sums_to_one() -> None:
    found = probs(replace(PLAIN, top_k=2))
    assert set(found) == {4, 0}
    assert sum(found.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("n_vocab", [2_623, 2_624, 2_700, 49_152, 152_064])
@pytest.mark.parametrize("k", [1, 40])
def test_top_k_is_exact_in_vocabularies_of_any_size(n_vocab: int, k: int) -> None:
    random = np.random.default_rng(n_vocab)
    sampler = Sampler(replace(PLAIN, top_k=k), seed=1)
    for scale in (0.0, 1.0, 30.0):
        logits = (scale * random.normal(size=n_vocab)).astype(np.float32)
        top = sampler.distribution(logits, ()).tokens
        assert len(set(top.tolist())) == k
        assert sorted(logits[top]) == sorted(np.sort(logits)[-k:])
    at_the_end = np.arange(n_vocab, dtype=np.float32)
    assert set(sampler.distribution(at_the_end, ()).tokens) == set(range(n_vocab - k, n_vocab))


def test_top_k_takes_no_masked_token_into_a_large_vocabulary() -> None:
    allowed = np.zeros(49_152, dtype=bool)
    allowed[[7, 30_000]] = True
    sampler = Sampler(replace(PLAIN, top_k=40), seed=1, mask=lambda history: allowed)
    logits = np.random.default_rng(2).normal(size=49_152).astype(np.float32)
    assert set(sampler.distribution(logits, ()).tokens.tolist()) == {7, 30_000}


def test_top_p_keeps_the_fewest_likeliest_that_reach_p() -> None:
    assert set(probs(replace(PLAIN, top_p=0.63))) == {4}
    assert set(probs(replace(PLAIN, top_p=0.65))) == {4, 0}
    assert sum(probs(replace(PLAIN, top_p=0.65)).values()) == pytest.approx(1.0)


def test_min_p_keeps_what_is_likely_beside_the_likeliest() -> None:
    assert set(probs(replace(PLAIN, min_p=0.2))) == {4, 0}
    assert sum(probs(replace(PLAIN, min_p=0.2)).values()) == pytest.approx(1.0)


def test_a_penalty_weakens_recent_tokens_of_either_sign() -> None:
    plain, penalised = probs(PLAIN), probs(replace(PLAIN, repetition_penalty=2.0), (4, 3))
    assert penalised[4] / penalised[1] == pytest.approx(plain[4] / plain[1] / math.exp(1.5))
    assert penalised[3] / penalised[1] == pytest.approx(plain[3] / plain[1] / math.exp(1.0))


def test_a_penalty_sees_its_window_only() -> None:
    settings = replace(PLAIN, repetition_penalty=2.0, repetition_window=2)
    assert probs(settings, (4, 1, 2)) == pytest.approx(probs(settings, (1, 2)))


def test_a_penalty_changes_the_greedy_choice() -> None:
    settings = SamplingSettings(repetition_penalty=2.0)
    assert Sampler(settings, seed=1).sample(LOGITS, (4,), 0) == 0


def test_drawn_tokens_follow_the_distribution() -> None:
    settings = SamplingSettings(temperature=0.8, top_k=4, top_p=0.95)
    sampler = Sampler(settings, seed=3)
    distribution = sampler.distribution(LOGITS, ())
    n = 40_000
    drawn = np.bincount([sampler.pick(distribution, at).token for at in range(n)], minlength=5)
    expected = np.zeros(5)
    expected[distribution.tokens] = distribution.probs * n
    top = expected > 0
    assert drawn[~top].sum() == 0
    chi_square = float(((drawn[top] - expected[top]) ** 2 / expected[top]).sum())
    assert chi_square < 16.3, "p < 0.001 at 3 degrees of freedom"


def test_a_draw_depends_on_seed_and_position_and_on_nothing_else() -> None:
    settings = SamplingSettings(temperature=1.0)
    first = [Sampler(settings, 5).sample(LOGITS, (), at) for at in range(50)]
    again = [Sampler(settings, 5).sample(LOGITS, (), at) for at in reversed(range(50))]
    other = [Sampler(settings, 6).sample(LOGITS, (), at) for at in range(50)]
    assert first == again[::-1]
    assert first != other


def test_noise_of_neighbouring_counters_is_independent() -> None:
    tokens = np.arange(2000)
    table = np.stack([gumbel(9, position, tokens) for position in range(40)])
    assert np.isfinite(table).all()
    assert abs(table.mean() - 0.5772) < 0.02
    assert abs(table.var() - math.pi**2 / 6) < 0.05
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 0.02


def only(*tokens: int) -> np.ndarray:
    return np.isin(np.arange(5), tokens)


def test_a_mask_leaves_nothing_of_what_it_forbids() -> None:
    for settings in (PLAIN, replace(PLAIN, top_k=4), replace(PLAIN, top_p=0.9, min_p=0.01)):
        sampler = Sampler(settings, seed=1, mask=lambda history: only(1, 3))
        found = sampler.distribution(LOGITS, ())
        assert set(found.tokens.tolist()) == {1, 3}
        assert found.probs.sum() == pytest.approx(1.0)
    greedy = Sampler(SamplingSettings(), seed=1, mask=lambda history: only(1, 3))
    assert greedy.sample(LOGITS, (), 0) == 1


def test_a_mask_sees_the_whole_line_though_a_penalty_sees_a_part() -> None:
    seen: list[tuple[int, ...]] = []

    def remember(history: Sequence[int], /) -> np.ndarray:
        seen.append(tuple(history))
        return only(0, 1)

    settings = replace(PLAIN, repetition_penalty=2.0, repetition_window=1)
    sampler = Sampler(settings, seed=1, mask=remember)
    assert sampler.history_window is None
    assert Sampler(settings, seed=1).history_window == 1
    assert Sampler(PLAIN, seed=1).history_window == 0
    sampler.sample(LOGITS, (4, 3, 2), 3)
    assert seen == [(4, 3, 2)]


def test_a_mask_of_a_larger_vocabulary_serves_a_draft_model_too() -> None:
    sampler = Sampler(PLAIN, seed=1, mask=lambda history: only(1, 3, 4))
    assert set(sampler.distribution(LOGITS[:4], ()).tokens.tolist()) == {1, 3}


def test_a_mask_that_forbids_everything_is_an_error() -> None:
    with pytest.raises(DecodeError, match="forbids every token"):
        Sampler(PLAIN, seed=1, mask=lambda history: only()).sample(LOGITS, (), 0)


def test_the_margin_is_the_error_of_a_row_that_leaves_the_token() -> None:
    greedy = SamplingSettings()
    assert Sampler(greedy, seed=1).choose(LOGITS, (), 0).margin == pytest.approx(1.0)
    penalised = Sampler(replace(greedy, repetition_penalty=2.0), seed=1)
    assert penalised.choose(LOGITS, (4,), 0).margin == pytest.approx(0.5)
    assert Sampler(replace(PLAIN, top_k=1), seed=1).choose(LOGITS, (), 0).margin == math.inf
    for settings in (PLAIN, replace(PLAIN, temperature=0.5, top_k=3), greedy):
        for position in range(30):
            sampler = Sampler(settings, seed=1)
            chosen = sampler.sample(LOGITS, (), position)
            margin = sampler.choose(LOGITS, (), position).margin
            assert sampler.choose(LOGITS, (), position).token == chosen
            for factor, stays in ((0.99, True), (1.01, False)):
                shifted = LOGITS.astype(np.float64)
                shifted[chosen] -= factor * margin
                top = sampler.sample(shifted.astype(np.float32), (), position) == chosen
                assert top == stays


@pytest.mark.parametrize(
    "settings",
    [SamplingSettings(), PLAIN],
    ids=["greedy", "drawn"],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("n_bad", [1, 50], ids=["one", "all"])
def test_logits_that_are_no_numbers_are_refused_by_the_name_of_their_cause(
    settings: SamplingSettings, bad: float, n_bad: int
) -> None:
    logits = np.random.default_rng(1).normal(size=50).astype(np.float32)
    logits[3 : 3 + n_bad] = bad
    if n_bad == 50:
        logits[:] = bad
    sampler = Sampler(settings, seed=1)
    for ask in (sampler.sample, sampler.choose):
        with pytest.raises(LogitsError, match="weights of the model"):
            ask(logits, [], 0)
    with pytest.raises(LogitsError, match="weights of the model"):
        sampler.distribution(logits, [])
    with pytest.raises(LogitsError, match="weights of the model"):
        sampler.likeliest(logits, [])
