"""The drawn text is the target's: by equality, and by enumerating the law."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from engine.configuration import SamplingSettings
from engine.sampling import Sampler
from engine.speculation.verify import NEAR_TIE, verify_draft

N_VOCAB = 4
RNG = np.random.default_rng(11)
ROWS = RNG.normal(scale=1.2, size=(3, N_VOCAB)).astype(np.float32)


def own_tokens(sampler: Sampler, rows: np.ndarray, line: list[int]) -> list[int]:
    """The target's own choices, each behind the ones before."""
    tokens: list[int] = []
    for index, row in enumerate(rows):
        tokens.append(sampler.sample(row, [*line, *tokens], len(line) + index))
    return tokens


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(),
        SamplingSettings(temperature=0.7),
        SamplingSettings(temperature=1.0, top_k=3, top_p=0.9),
        SamplingSettings(temperature=1.0, repetition_penalty=6.0, repetition_window=8),
        SamplingSettings(temperature=1.0, repetition_penalty=6.0, repetition_window=2),
    ],
)
def test_every_draft_gives_the_target_s_own_tokens(settings: SamplingSettings) -> None:
    line = [3, 2, 1]
    for seed in range(20):
        sampler = Sampler(settings, seed)
        own = own_tokens(sampler, ROWS, line)
        for draft in product(range(N_VOCAB), repeat=2):
            verdict = verify_draft(draft, ROWS, sampler, line)
            n = verdict.n_accepted
            assert list(draft[:n]) == own[:n]
            assert verdict.next_token == own[n]
            assert n == 2 or draft[n] != own[n]


def test_all_none_and_no_draft_are_counted_apart() -> None:
    sampler = Sampler(SamplingSettings(), seed=0)
    own = own_tokens(sampler, ROWS, [0])
    wrong = [(token + 1) % N_VOCAB for token in own]
    everything = verify_draft(own[:2], ROWS, sampler, [0])
    assert (everything.n_accepted, everything.n_examined) == (2, 2)
    nothing = verify_draft(wrong[:2], ROWS, sampler, [0])
    assert (nothing.n_accepted, nothing.n_examined) == (0, 1)
    plain = verify_draft((), ROWS[:1], sampler, [0])
    assert (plain.n_accepted, plain.n_examined, plain.next_token) == (0, 0, own[0])


@pytest.mark.slow
def test_the_drawn_law_is_the_target_s_with_any_draft_law() -> None:
    """Over many seeds the pair of tokens follows p1·p2, though a skewed law drafts the first."""
    settings = SamplingSettings(temperature=1.0)
    n = 20_000
    pairs: Counter[tuple[int, int]] = Counter()
    second_rows = RNG.normal(size=(N_VOCAB, N_VOCAB)).astype(np.float32)
    skewed = np.array([3.0, 0.0, 0.0, -2.0], dtype=np.float32)
    for seed in range(n):
        sampler = Sampler(settings, seed)
        drafted = sampler.sample(skewed, (), 1)
        rows = np.stack([ROWS[0], second_rows[drafted]])
        verdict = verify_draft((drafted,), rows, sampler, [0])
        if verdict.n_accepted:
            pairs[drafted, verdict.next_token] += 1
        else:
            first = verdict.next_token
            pairs[first, sampler.sample(second_rows[first], (), 2)] += 1
    first_law = np.exp(ROWS[0]) / np.exp(ROWS[0]).sum()
    second_law = np.exp(second_rows) / np.exp(second_rows).sum(axis=1, keepdims=True)
    expected = first_law[:, None] * second_law * n
    found = np.array([[pairs[a, b] for b in range(N_VOCAB)] for a in range(N_VOCAB)])
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert chi_square < 37.7, "p < 0.001 at 15 degrees of freedom"


def test_sharing_noise_accepts_more_than_independent_draws() -> None:
    settings = SamplingSettings(temperature=1.0)
    target, draft = RNG.normal(size=(2, 50)).astype(np.float32)
    draft = target + 0.5 * draft
    shared = independent = 0
    for seed in range(4000):
        own = Sampler(settings, seed).sample(target, (), 0)
        shared += own == Sampler(settings, seed).sample(draft, (), 0)
        independent += own == Sampler(settings, seed + 10_000).sample(draft, (), 0)
    assert shared > 3 * independent


NEAR = np.array([1.0, 1.0 - 0.5 * NEAR_TIE, -2.0, -3.0], dtype=np.float32)


def test_near_ties_are_counted_up_to_the_first_miss_and_only_in_batches() -> None:
    greedy = Sampler(SamplingSettings(), seed=0)
    rows = np.stack([NEAR, NEAR, NEAR])
    assert verify_draft((0, 0), rows, greedy, [3]).n_near_ties == 3
    assert verify_draft((0, 0), rows[:2], greedy, [3]).n_near_ties == 2
    assert verify_draft((0, 1), rows, greedy, [3]).n_near_ties == 2
    assert verify_draft((1, 0), rows, greedy, [3]).n_near_ties == 1
    assert verify_draft((), rows[:1], greedy, [3]).n_near_ties == 0
