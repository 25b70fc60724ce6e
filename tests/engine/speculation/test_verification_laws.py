"""With any draft and verification the distribution of the text is exactly the target's."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.configuration import SamplingSettings, Verification
from engine.sampling import Distribution, Sampler, TokenMask
from engine.speculation.verify import draw_draft, residual, verify_draft
from tests.support.chances import Chances, EnumeratedSampler, distribution_of

MODES: tuple[Verification, ...] = get_args(Verification)
N_VOCAB = 4
LINE = (2, 0, 1)
WARM = SamplingSettings(temperature=0.9)
SAMPLINGS = {
    "greedy": SamplingSettings(),
    "plain": WARM,
    "cold": replace(WARM, temperature=0.4),
    "top-k": replace(WARM, top_k=2),
    "top-p": replace(WARM, top_p=0.7),
    "min-p": replace(WARM, min_p=0.35),
    "penalty": replace(WARM, repetition_penalty=2.5, repetition_window=3),
    "all": SamplingSettings(
        temperature=1.1, top_k=3, top_p=0.95, min_p=0.05, repetition_penalty=1.4
    ),
}
Drafted = tuple[tuple[int, ...], tuple[Distribution | None, ...]]
StopRule = Callable[[int, float, float], str]
Row = NDArray[np.float32]


@cache
def logits(which: int, context: tuple[int, ...]) -> Row:
    """Target (0) and draft (1) agree in part, by the last two tokens."""
    common = np.random.default_rng([5, *context[-2:]]).normal(size=N_VOCAB)
    own = np.random.default_rng([6 + which, *context[-2:]]).normal(size=N_VOCAB)
    row: Row = (1.2 * common + 0.8 * own).astype(np.float32)
    return row


def fixed(n_drafted: int, own: float, best: float) -> str:
    return "go on"


def ends_after_a_weak_token(n_drafted: int, own: float, best: float) -> str:
    return "last" if own < 0.4 else "go on"


def ends_before_a_weak_row(n_drafted: int, own: float, best: float) -> str:
    return "drop" if best < 0.45 else "go on"


def ends_before_a_weak_row_but_not_first(n_drafted: int, own: float, best: float) -> str:
    return "drop" if n_drafted >= 1 and best < 0.6 else "go on"


def drops_what_was_drawn(n_drafted: int, own: float, best: float) -> str:
    return "drop" if own < 0.4 else "go on"


EXACT_RULES = (
    fixed,
    ends_after_a_weak_token,
    ends_before_a_weak_row,
    ends_before_a_weak_row_but_not_first,
)


def model_draft(sampler: Sampler, mode: Verification, n_draft: int, rule: StopRule) -> Drafted:
    """Draft as a draft model does, with a rule that may look at the row and at the draw."""
    tokens: list[int] = []
    distributions: list[Distribution | None] = []
    while len(tokens) < n_draft:
        line = [*LINE, *tokens]
        row = logits(1, tuple(line))
        token, drawn_from = draw_draft(
            row, sampler, line, round_start=len(LINE), position=len(line), verification=mode
        )
        found = sampler.distribution(row, line)
        decision = rule(len(tokens), found.probability(token), float(found.probs.max()))
        if decision == "drop":
            break
        tokens.append(token)
        distributions.append(drawn_from)
        if decision == "last":
            break
    return tuple(tokens), tuple(distributions)


def one_round(
    chances: Chances,
    settings: SamplingSettings,
    mode: Verification,
    draft: Callable[[Sampler], Drafted],
    *,
    bonus: bool,
    mask: TokenMask | None = None,
) -> tuple[int, ...]:
    sampler = EnumeratedSampler(settings, chances, mask)
    tokens, distributions = draft(sampler)
    n_rows = len(tokens) + (bonus or not tokens)
    rows = np.stack([logits(0, (*LINE, *tokens[:index])) for index in range(n_rows)])
    verdict = verify_draft(
        tokens, rows, sampler, LINE, verification=mode, distributions=distributions
    )
    added = () if verdict.next_token is None else (verdict.next_token,)
    return (*tokens[: verdict.n_accepted], *added)


def drawn_distribution(
    settings: SamplingSettings,
    mode: Verification,
    n_draft: int,
    rule: StopRule,
    *,
    bonus: bool = True,
    mask: TokenMask | None = None,
) -> dict[tuple[int, ...], float]:
    """The found of a round whose draft a model drew."""
    return distribution_of(
        lambda chances: one_round(
            chances,
            settings,
            mode,
            lambda sampler: model_draft(sampler, mode, n_draft, rule),
            bonus=bonus,
            mask=mask,
        )
    )


def chosen_distribution(
    settings: SamplingSettings,
    mode: Verification,
    tokens: tuple[int, ...],
    *,
    bonus: bool = True,
    mask: TokenMask | None = None,
) -> dict[tuple[int, ...], float]:
    """The found of a round whose draft is given, as one that was read from the chat."""
    drafted = (tokens, (None,) * len(tokens))
    return distribution_of(
        lambda chances: one_round(
            chances, settings, mode, lambda _: drafted, bonus=bonus, mask=mask
        )
    )


def error(
    found: dict[tuple[int, ...], float],
    settings: SamplingSettings,
    n: int,
    mask: TokenMask | None = None,
) -> float:
    """Give the largest difference from the target's found of the next `n` tokens.

    A round that emits fewer is followed by the target's own found.
    """
    sampler = Sampler(settings, seed=0, mask=mask)

    @cache
    def own_distribution(prefix: tuple[int, ...]) -> Distribution:
        line = (*LINE, *prefix)
        return sampler.distribution(logits(0, line), line)

    @cache
    def own(prefix: tuple[int, ...], rest: tuple[int, ...]) -> float:
        if not rest:
            return 1.0
        return own_distribution(prefix).probability(rest[0]) * own((*prefix, rest[0]), rest[1:])

    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    largest = 0.0
    for text in product(range(N_VOCAB), repeat=n):
        drawn = sum(
            found.get(text[:length], 0.0) * own(text[:length], text[length:])
            for length in range(n + 1)
        )
        largest = max(largest, abs(drawn - own((), text)))
    return largest


@pytest.mark.parametrize("rule", EXACT_RULES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_drawn_draft_leaves_the_distribution_exact(
    name: str, mode: Verification, rule: StopRule
) -> None:
    settings = SAMPLINGS[name]
    assert error(drawn_distribution(settings, mode, 2, rule), settings, 3) < 1e-12


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("n_draft", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_short_and_long_drafts_are_exact_with_and_without_the_bonus(
    mode: Verification, n_draft: int, bonus: bool
) -> None:
    settings = SAMPLINGS["all"]
    found = drawn_distribution(settings, mode, n_draft, fixed, bonus=bonus)
    assert max(len(text) for text in found) == n_draft + bonus
    assert error(found, settings, n_draft + bonus) < 1e-12


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_chosen_draft_leaves_the_distribution_exact(name: str, mode: Verification) -> None:
    settings = SAMPLINGS[name]
    for tokens in ((), (0,), (1, 3), (2, 2), (3, 1, 0)):
        for bonus in (True, False):
            found = chosen_distribution(settings, mode, tokens, bonus=bonus)
            assert error(found, settings, len(tokens) + 1) < 1e-12


def brackets(history: Sequence[int], /) -> NDArray[np.bool_]:
    """A toy automaton: 1 opens and only 2 or 0 may follow, 2 closes, 3 follows 0 only."""
    last = history[-1]
    allowed = {0: (0, 1, 3), 1: (0, 2), 2: (0, 1), 3: (1,)}[last]
    return np.isin(np.arange(N_VOCAB), allowed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_mask_binds_draft_and_target_and_keeps_the_distribution(
    name: str, mode: Verification
) -> None:
    """A drawn draft keeps to the mask; one that was chosen may hold what the mask forbids."""
    settings = SAMPLINGS[name]
    distributions = [drawn_distribution(settings, mode, 2, fixed, mask=brackets)]
    forbidden = ((3,), (1, 2), (2, 2), (2, 3), (0, 3, 3))
    distributions += [
        chosen_distribution(settings, mode, tokens, mask=brackets) for tokens in forbidden
    ]
    for found in distributions:
        assert error(found, settings, max(map(len, found)), brackets) < 1e-12
        for text in found:
            for index, token in enumerate(text):
                assert brackets((*LINE, *text[:index]))[token]


def test_a_rule_that_drops_what_was_drawn_would_be_caught() -> None:
    """Why a drawn token is never withdrawn: the found of the next two tokens would be another."""
    assert error(drawn_distribution(WARM, "rejection", 1, drops_what_was_drawn), WARM, 2) > 1e-3


def test_coupled_may_drop_what_was_drawn() -> None:
    for settings in SAMPLINGS.values():
        found = drawn_distribution(settings, "coupled", 2, drops_what_was_drawn)
        assert error(found, settings, 3) < 1e-12


def test_rejection_accepts_more_than_coupled() -> None:
    def mean_accepted(mode: Verification) -> float:
        found = drawn_distribution(WARM, mode, 3, fixed)
        return sum(len(text) * weight for text, weight in found.items()) - 1.0

    assert mean_accepted("rejection") > mean_accepted("coupled") + 1e-3


def test_rejection_accepts_one_token_as_often_as_the_distributions_overlap() -> None:
    sampler = Sampler(WARM, seed=0)
    target = sampler.distribution(logits(0, LINE), LINE)
    draft = sampler.distribution(logits(1, LINE), LINE)
    every = np.arange(N_VOCAB)
    overlap = np.minimum(target.probabilities(every), draft.probabilities(every)).sum()
    found = drawn_distribution(WARM, "rejection", 1, fixed)
    accepted = sum(weight for text, weight in found.items() if len(text) == 2)
    assert accepted == pytest.approx(overlap, abs=1e-12)


def test_where_rounding_leaves_nothing_the_correction_is_drawn_from_the_target() -> None:
    equal = Distribution(np.array([1, 3]), np.array([0.25, 0.75]))
    assert residual(equal, equal) is equal
