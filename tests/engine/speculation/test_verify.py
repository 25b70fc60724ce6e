"""The drawn text is the target's: by equality, and by enumerating the distribution."""

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
    """The target's own choices, each after the ones before."""
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


NEAR = np.array([1.0, 1.0 - 0.5 * NEAR_TIE, -2.0, -3.0], dtype=np.float32)


def test_near_ties_are_counted_up_to_the_first_miss_and_only_in_batches() -> None:
    greedy = Sampler(SamplingSettings(), seed=0)
    rows = np.stack([NEAR, NEAR, NEAR])
    assert verify_draft((0, 0), rows, greedy, [3]).n_near_ties == 3
    assert verify_draft((0, 0), rows[:2], greedy, [3]).n_near_ties == 2
    assert verify_draft((0, 1), rows, greedy, [3]).n_near_ties == 2
    assert verify_draft((1, 0), rows, greedy, [3]).n_near_ties == 1
    assert verify_draft((), rows[:1], greedy, [3]).n_near_ties == 0
