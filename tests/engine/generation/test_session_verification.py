"""The loop with every verification mode."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pytest

from engine.backends.base import Forward
from engine.configuration import (
    ControllerName,
    SamplingSettings,
    SpeculationSettings,
    Verification,
)
from engine.events import (
    Event,
    Finished,
    FinishReason,
    RoundFinished,
    TokenKind,
    TokensCommitted,
)
from engine.generation.session import Session
from engine.requests import Cancellation, GenerationRequest
from engine.sampling import Sampler
from engine.testing import FakeBackend, FakeSequence, FakeVocabulary
from tests.support.sessions import (
    DRAFT,
    GREEDY,
    LETTERS,
    LOOKUP,
    OFF,
    WARM,
    committed,
    finished,
    make_session,
    ready,
    request,
    rounds,
    run,
)

MODES: tuple[Verification, ...] = get_args(Verification)
COPYING = replace(LOOKUP, lookup_pattern_min=1)


def verified_by(
    settings: SpeculationSettings, verification: Verification, *, bonus: bool = True
) -> SpeculationSettings:
    return replace(settings, verification=verification, bonus_token=bonus)


@cache
def plain(sampling: SamplingSettings, seed: int) -> Finished:
    return finished(run(make_session(OFF), request(sampling=sampling, seed=seed)))


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("verification", MODES)
@pytest.mark.parametrize("settings", [COPYING, DRAFT])
def test_greedy_text_is_the_same_with_every_verification(
    settings: SpeculationSettings, verification: Verification, bonus: bool
) -> None:
    for sampling in (GREEDY, replace(GREEDY, repetition_penalty=1.3)):
        session = make_session(verified_by(settings, verification, bonus=bonus))
        reply = finished(run(session, request(sampling=sampling)))
        assert reply.token_ids == plain(sampling, 7).token_ids
        assert reply.stats.n_drafted > 0


@pytest.mark.parametrize("settings", [COPYING, DRAFT])
def test_a_seed_repeats_its_text_under_the_same_settings(settings: SpeculationSettings) -> None:
    first, again, other = (
        finished(
            run(make_session(verified_by(settings, "rejection")), request(sampling=WARM, seed=seed))
        )
        for seed in (3, 3, 4)
    )
    assert first.token_ids == again.token_ids != other.token_ids


SMALL = FakeVocabulary(3, ord("a"))


def small_session(settings: SpeculationSettings) -> Session:
    target = FakeBackend(SMALL, sharpness=1.0, order=2, end_bias=-30.0)
    draft = FakeBackend(SMALL, sharpness=1.0, order=2, end_bias=-30.0, noise=1.0)
    return make_session(settings, target=target, draft=draft)


@pytest.mark.slow
def test_sampled_replies_follow_the_target_s_distribution() -> None:
    """Three tokens over at least two rounds, so chances that two rounds share would show."""
    n = 1200
    sampling = SamplingSettings(temperature=1.0, top_k=3)
    settings = verified_by(replace(DRAFT, n_draft=2), "rejection", bonus=False)
    session = small_session(settings)
    wanted = GenerationRequest(messages=(), raw_prompt="ab", sampling=sampling, max_tokens=4)
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(n):
        reply = finished(run(session, replace(wanted, seed=seed)))
        found[reply.token_ids[:3]] += 1
    prompt = tuple(SMALL.tokenize("ab", add_special=True, parse_special=True))
    target, sampler = (
        FakeBackend(SMALL, sharpness=1.0, order=2, end_bias=-30.0),
        Sampler(sampling, 0),
    )
    chi_square = 0.0
    for text in ((a, b, c) for a in range(3) for b in range(3) for c in range(3)):
        expected = float(n)
        for index, token in enumerate(text):
            row = target.logits_after((*prompt, *text[:index]))
            expected *= sampler.distribution(row, ()).probability(token)
        chi_square += (found[text] - expected) ** 2 / expected
    assert chi_square < 54.1, "p < 0.001 at 26 degrees of freedom"


@pytest.mark.parametrize("verification", MODES)
def test_an_end_token_inside_a_draft_is_the_last_token(verification: Verification) -> None:
    for seed in range(8):
        target, draft = (FakeBackend(LETTERS, end_bias=4.5, sharpness=2.0) for _ in range(2))
        session = make_session(verified_by(DRAFT, verification), target=target, draft=draft)
        events = run(session, request(sampling=WARM, seed=seed, max_tokens=200))
        assert finished(events).reason is FinishReason.END
        tokens = [each.token for each in committed(events)]
        assert tokens.index(LETTERS.eos) == len(tokens) - 1
        assert list(finished(events).token_ids) == tokens[:-1]


def drafting(events: list[Event]) -> list[RoundFinished]:
    return [each for each in rounds(events) if each.n_drafted]


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("verification", MODES)
def test_a_draft_that_is_accepted_whole_saves_the_bonus_row_where_none_is_wanted(
    verification: Verification, bonus: bool
) -> None:
    target, twin = (FakeBackend(LETTERS, sharpness=2.0) for _ in range(2))
    sequence = target.open()
    target.open = lambda: sequence  # type: ignore[method-assign]  # to look into it
    session = make_session(verified_by(DRAFT, verification, bonus=bonus), target=target, draft=twin)
    sampling = WARM
    events: list[Event] = []
    line: list[int] = []
    for event in session.generate(request(sampling=sampling, max_tokens=61), Cancellation()):
        events.append(event)
        if isinstance(event, TokensCommitted):
            line += [token.token for token in event.tokens]
        if isinstance(event, RoundFinished):
            assert list(sequence.tokens)[-len(line) + 1 :] == line[:-1] or len(line) == 1
    for each in drafting(events):
        assert each.n_accepted == each.n_drafted
        assert each.n_emitted == each.n_drafted + bonus
    kinds = {each.kind for each in committed(events)}
    assert (TokenKind.BONUS in kinds) == bonus
    assert target.n_decoded == ready(events).n_prompt - 1 + len(line), "each token was decoded once"


class RoughSequence(FakeSequence):
    """Rounds otherwise in a batch of several rows, as fast kernels do."""

    def verify(self, tokens: Sequence[int], *, unread: Sequence[int] = ()) -> Forward:
        rows = super().verify(tokens, unread=unread).logits
        if len(tokens) == 1:
            return Forward(rows)
        error = np.random.default_rng(len(self.tokens)).uniform(-0.03, 0.03, rows.shape)
        return Forward((rows + error).astype(np.float32))


class RoughBackend(FakeBackend):
    def open(self) -> RoughSequence:
        return RoughSequence(self)


class SlidingSequence(FakeSequence):
    """Cannot go back far, as a window does not whose cells another sequence has taken."""

    def can_crop(self, length: int) -> bool:
        return length == 0 or 0 <= len(self.tokens) - length < 4


class RoughWindowSequence(SlidingSequence, RoughSequence):
    pass


class RoughWindow(FakeBackend):
    def open(self) -> RoughWindowSequence:
        return RoughWindowSequence(self)


def test_a_reply_counts_the_near_ties_of_its_batches() -> None:
    target = RoughBackend(LETTERS, sharpness=0.6)
    events = run(make_session(DRAFT, target=target), request())
    stats = finished(events).stats
    assert stats.n_near_ties == sum(each.n_near_ties for each in rounds(events)) > 0


def test_a_reply_goes_on_where_a_window_cannot_go_back_over_its_draft() -> None:
    settings = replace(DRAFT, controller=ControllerName.FIXED, n_draft=8)
    for seed in range(6):
        wanted = request(sampling=WARM, seed=seed)
        reply = finished(run(make_session(settings, target=RoughWindow(LETTERS)), wanted))
        assert reply.stats.n_drafted > reply.stats.n_accepted
        assert len(reply.token_ids) == 60


@pytest.mark.parametrize("settings", [OFF, COPYING])
def test_each_token_has_its_margin(settings: SpeculationSettings) -> None:
    target = FakeBackend(LETTERS, sharpness=0.6)
    for sampling in (GREEDY, WARM):
        sampler = Sampler(sampling, 7)
        wanted = request(sampling=sampling, raw_prompt="abcab", messages=())
        events = run(make_session(settings, target=target), wanted)
        line = LETTERS.tokenize("abcab", add_special=True, parse_special=True)
        for token in committed(events):
            row = target.logits_after(line)
            choice = sampler.choose(row, line, len(line))
            assert (token.token, token.margin) == (choice.token, choice.margin)
            line.append(token.token)
        assert len(line) > 60


def test_rejection_reports_no_margin() -> None:
    events = run(make_session(verified_by(DRAFT, "rejection")), request(sampling=WARM))
    assert {each.margin for each in committed(events)} == {None}
    assert finished(events).stats.n_near_ties == 0
