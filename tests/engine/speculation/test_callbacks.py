"""A decoder around two functions: the target's text, in fewer calls, whatever the draft does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import rewind
from engine.configuration import (
    ControllerName,
    SamplingSettings,
    SpeculationSettings,
    Verification,
)
from engine.errors import DecodeError, PresetError
from engine.sampling import Sampler
from engine.speculation.callbacks import (
    UNKNOWN_CONFIDENCE,
    CallbackDecoder,
    CallbackPredictor,
    DecodingComplete,
    DraftCallback,
    DraftingStopped,
    DraftMade,
    DraftVerified,
    EndReason,
    StatisticsSummary,
)
from engine.speculation.predictors.base import DraftToken
from engine.speculation.verify import draw_draft
from tests.chances import Chances, EnumeratedSampler, law_of
from tests.contracts.predictor import PredictorContract
from engine.testing import FakeBackend, FakeVocabulary

Rows = NDArray[np.float32]
N_VOCAB = 12
END = 11
PROMPT = (1, 2, 3)
GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.9, top_k=6)
FIXED = SpeculationSettings(controller=ControllerName.FIXED, n_draft=3)


def row(which: int, line: Sequence[int], n_vocab: int = N_VOCAB) -> Rows:
    """Target (0) and draft (1) agree in part, behind the last two tokens."""
    common = np.random.default_rng([5, *line[-2:]]).normal(size=n_vocab)
    own = np.random.default_rng([6 + which, *line[-2:]]).normal(size=n_vocab)
    logits: Rows = (2.0 * common + 0.7 * own).astype(np.float32)
    if n_vocab > END:
        logits[END] -= 3.0
    return logits


class Target:
    """The target function, which counts its calls."""

    def __init__(self) -> None:
        self.drafts: list[tuple[int, ...]] = []

    def __call__(self, line: Sequence[int], draft: Sequence[int]) -> Rows:
        self.drafts.append(tuple(draft))
        return np.stack([row(0, (*line, *draft[:n])) for n in range(len(draft) + 1)])


def drafting(which: int) -> DraftCallback:
    def draft(line: Sequence[int], n_max: int) -> Iterator[int]:
        tokens = list(line)
        for _ in range(n_max):
            tokens.append(int(row(which, tokens).argmax()))
            yield tokens[-1]

    return draft


def decoder(
    draft: DraftCallback,
    target: Callable[..., Any] | None = None,
    sampling: SamplingSettings = GREEDY,
    settings: SpeculationSettings = FIXED,
) -> CallbackDecoder:
    return CallbackDecoder(
        draft,
        target or Target(),
        Sampler(sampling, seed=3),
        n_vocab=N_VOCAB,
        settings=settings,
        is_end=lambda token: token == END,
    )


def own_text(sampling: SamplingSettings, max_tokens: int) -> tuple[int, ...]:
    sampler, line = Sampler(sampling, seed=3), list(PROMPT)
    while len(line) - len(PROMPT) < max_tokens and (line[-1] != END or len(line) == len(PROMPT)):
        line.append(sampler.sample(row(0, line), line, len(line)))
    return tuple(line[len(PROMPT) :])


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 7, 60])
@pytest.mark.parametrize("controller", ControllerName)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_the_text_is_the_targets_own(
    sampling: SamplingSettings, which: int, controller: ControllerName, max_tokens: int
) -> None:
    wanted = own_text(sampling, max_tokens)
    for n_draft, bonus, strict in product((1, 4, 16), (True, False), (True, False)):
        settings = replace(
            FIXED, controller=controller, n_draft=n_draft, bonus_token=bonus, strict=strict
        )
        made = decoder(drafting(which), sampling=sampling, settings=settings)
        assert made.decode(PROMPT, max_tokens=max_tokens) == wanted


@pytest.mark.parametrize("mode", get_args(Verification))
@pytest.mark.parametrize("bonus", [True, False])
def test_what_is_drawn_follows_the_law_of_the_target_exactly(
    mode: Verification, bonus: bool
) -> None:
    n_vocab, n_tokens = 3, 3
    sampling = SamplingSettings(temperature=0.8, repetition_penalty=1.4)
    settings = replace(FIXED, n_draft=2, verification=mode, bonus_token=bonus)

    def program(chances: Chances) -> tuple[int, ...]:
        sampler = EnumeratedSampler(sampling, chances)

        def draft(line: Sequence[int], n_max: int) -> Iterator[DraftToken]:
            seen = list(line)
            for _ in range(n_max):
                made = draw_draft(
                    row(1, seen, n_vocab),
                    sampler,
                    seen,
                    round_start=len(line),
                    position=len(seen),
                    verification=mode,
                )
                seen.append(made.token)
                yield DraftToken(made.token, 0.5, made.law)

        def target(line: Sequence[int], draft: Sequence[int]) -> Rows:
            lines = ((*line, *draft[:n]) for n in range(len(draft) + 1))
            return np.stack([row(0, each, n_vocab) for each in lines])

        made = CallbackDecoder(
            draft, target, sampler, n_vocab=n_vocab, settings=settings, is_end=lambda token: False
        )
        return made.decode((0, 1), max_tokens=n_tokens)

    sampler = Sampler(sampling, seed=0)

    @cache
    def own(text: tuple[int, ...]) -> float:
        chance, line = 1.0, [0, 1]
        for token in text:
            law = sampler.distribution(row(0, line, n_vocab), line)
            chance *= law.probability(token)
            line.append(token)
        return chance

    found = law_of(program)
    for text in product(range(n_vocab), repeat=n_tokens):
        assert found.get(text, 0.0) == pytest.approx(own(text), abs=1e-12)


def test_a_perfect_draft_takes_a_call_for_each_full_round_and_none_more() -> None:
    target = Target()
    settings = replace(FIXED, n_draft=3)
    made = decoder(drafting(0), target, settings=settings)
    text = made.decode(PROMPT, max_tokens=13)
    assert len(text) == 13
    assert [len(draft) for draft in target.drafts] == [3, 3, 3, 0]
    assert made.statistics.n_forwards == len(target.drafts)


def test_no_token_is_drafted_that_could_not_be_used() -> None:
    asked: list[int] = []

    def draft(line: Sequence[int], n_max: int) -> list[int]:
        asked.append(n_max)
        return [0] * 50

    target = Target()
    decoder(draft, target, settings=replace(FIXED, n_draft=8)).decode(PROMPT, max_tokens=6)
    assert max(asked) <= 5
    assert all(len(given) <= 5 for given in target.drafts)
    assert target.drafts[-1] == () or len(target.drafts[-1]) < 6


def test_a_lazy_draft_is_not_asked_for_more_than_is_wanted() -> None:
    pulled: list[int] = []

    def endless(line: Sequence[int], n_max: int) -> Iterator[int]:
        while True:
            pulled.append(1)
            yield 0

    made = decoder(endless, settings=replace(FIXED, n_draft=4))
    made.decode(PROMPT, max_tokens=20)
    assert len(pulled) <= 4 * made.statistics.n_rounds


def test_it_tells_each_draft_each_verification_and_the_end() -> None:
    events = list(decoder(drafting(1)).events(PROMPT, max_tokens=20))
    made, verified = events[:-1:2], events[1:-1:2]
    assert all(isinstance(event, DraftMade) for event in made)
    assert all(isinstance(event, DraftVerified) for event in verified)
    end = events[-1]
    assert isinstance(end, DecodingComplete)
    told = [token for event in verified for token in getattr(event, "tokens", ())]
    assert tuple(told) == end.tokens == own_text(GREEDY, 20)
    assert end.reason is (EndReason.END if end.tokens[-1] == END else EndReason.LENGTH)


def test_an_end_token_inside_a_draft_ends_the_text() -> None:
    def target(line: Sequence[int], draft: Sequence[int]) -> Rows:
        rows = np.zeros((len(draft) + 1, N_VOCAB), dtype=np.float32)
        for index in range(len(draft) + 1):
            rows[index, END if len(line) + index == 5 else 1] = 9.0
        return rows

    draft_of_ends = [1, 1, END, 1, 1]
    made = decoder(lambda line, n_max: draft_of_ends, target, settings=replace(FIXED, n_draft=5))
    events = list(made.events(PROMPT, max_tokens=40))
    end = events[-1]
    assert isinstance(end, DecodingComplete)
    assert end.tokens == (1, 1, END)
    assert end.reason is EndReason.END
    assert made.statistics.n_forwards == 1


def test_statistics_add_up_over_calls_can_be_shown_and_start_again() -> None:
    made = decoder(drafting(1))
    made.decode(PROMPT, max_tokens=20)
    once = made.statistics
    made.decode(PROMPT, max_tokens=20)
    twice = made.statistics
    assert twice.n_emitted == 2 * once.n_emitted > 0
    assert once.n_drafted == once.n_accepted + once.n_refuted
    shown = twice.formatted()
    assert f"{twice.n_emitted} in {twice.n_rounds} rounds" in shown
    assert f"{twice.n_accepted} accepted, {twice.n_refuted} refuted" in shown
    made.reset_statistics()
    assert made.statistics.n_rounds == 0
    assert made.statistics.acceptance_rate is None
    assert "unknown" in made.statistics.formatted()


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (lambda line, n_max: 1 / 0, "ZeroDivisionError"),
        (lambda line, n_max: [N_VOCAB], "token 12"),
        (lambda line, n_max: [-1], "token -1"),
        (lambda line, n_max: ["a"], "'a' as a token"),
        (lambda line, n_max: None, "not iterable"),
    ],
)
def test_a_draft_function_that_fails_is_left_out_and_told_once(
    draft: DraftCallback, said: str
) -> None:
    events = list(decoder(draft).events(PROMPT, max_tokens=12))
    stops = [event for event in events if isinstance(event, DraftingStopped)]
    assert len(stops) == 1
    assert said in stops[0].reason
    end = events[-1]
    assert isinstance(end, DecodingComplete)
    assert end.tokens == own_text(GREEDY, 12)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda line, draft: np.zeros((len(draft), N_VOCAB)), r"\[4, 12\] logits are wanted"),
        (lambda line, draft: np.zeros(N_VOCAB), "are wanted"),
        (lambda line, draft: "text", "are wanted"),
        (lambda line, draft: np.full((len(draft) + 1, N_VOCAB), np.nan), "NaN"),
        (lambda line, draft: np.full((len(draft) + 1, N_VOCAB), -np.inf), "without a largest"),
    ],
)
def test_a_target_function_without_logits_is_told(target: Callable[..., Any], said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        decoder(drafting(0), target).decode(PROMPT, max_tokens=9)


@pytest.mark.parametrize(("prompt", "max_tokens"), [((), 4), (PROMPT, -1)])
def test_nothing_to_begin_with_is_refused(prompt: tuple[int, ...], max_tokens: int) -> None:
    with pytest.raises(PresetError, match="at least one token"):
        decoder(drafting(0)).decode(prompt, max_tokens=max_tokens)


def test_a_caller_with_a_cache_finds_what_was_accepted_in_the_line() -> None:
    letters = FakeVocabulary(6, ord("a"))

    def cached(backend: FakeBackend) -> Callable[[Sequence[int], Sequence[int]], Rows]:
        sequence = backend.open()

        def target(line: Sequence[int], draft: Sequence[int]) -> Rows:
            for start in range(rewind(sequence, line[:-1]), len(line) - 1, backend.n_batch):
                sequence.prefill(line[:-1][start : start + backend.n_batch])
            return sequence.verify((line[-1], *draft)).logits

        return target

    def text(n_draft: int) -> tuple[int, ...]:
        backend = FakeBackend(letters, seed=2, end_bias=-30.0)
        small = FakeBackend(letters, seed=2, noise=0.2, end_bias=-30.0)

        def draft(line: Sequence[int], n_max: int) -> Iterator[int]:
            tokens = list(line)
            for _ in range(n_max):
                tokens.append(int(small.logits_behind(tokens).argmax()))
                yield tokens[-1]

        made = CallbackDecoder(
            draft,
            cached(backend),
            Sampler(GREEDY, seed=0),
            n_vocab=letters.n_tokens,
            settings=replace(FIXED, n_draft=n_draft),
            is_end=letters.is_end,
        )
        tokens = made.decode(PROMPT, max_tokens=60)
        assert made.statistics.n_accepted > 0
        assert backend.n_decoded <= 60 + made.statistics.n_refuted + len(PROMPT)
        return tokens

    assert text(1) == text(3) == text(8)


@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_a_draft_with_the_laws_of_the_target_is_accepted_whole(mode: Verification) -> None:
    sampler = Sampler(WARM, seed=3)

    def draft(line: Sequence[int], n_max: int) -> Iterator[DraftToken]:
        seen = list(line)
        for _ in range(n_max):
            made = draw_draft(
                row(0, seen),
                sampler,
                seen,
                round_start=len(line),
                position=len(seen),
                verification=mode,
            )
            seen.append(made.token)
            yield DraftToken(made.token, 0.5, made.law)

    made = decoder(draft, sampling=WARM, settings=replace(FIXED, verification=mode))
    made.decode(PROMPT, max_tokens=60)
    assert made.statistics.n_drafted > 10
    assert made.statistics.n_refuted == 0


def test_without_the_bonus_a_round_emits_its_draft_alone() -> None:
    made = decoder(drafting(0), settings=replace(FIXED, bonus_token=False))
    events = list(made.events(PROMPT, max_tokens=13))
    emitted = [len(event.tokens) for event in events if isinstance(event, DraftVerified)]
    assert emitted[:4] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("summary", "speed_up"),
    [
        (StatisticsSummary(), None),
        (StatisticsSummary(n_rounds=9, n_emitted=9, verify_s=9.0, n_plain=9, plain_s=20.0), None),
        (StatisticsSummary(n_rounds=4, n_drafted=4, n_emitted=8, verify_s=4.0), None),
        (
            StatisticsSummary(
                n_rounds=4, n_drafted=4, n_emitted=6, verify_s=4.0, n_plain=2, plain_s=2.0
            ),
            1.5,
        ),
        (
            StatisticsSummary(
                n_rounds=4, n_drafted=4, n_emitted=6, verify_s=4.0, n_plain=2, plain_s=9.0
            ),
            1.5,
        ),
    ],
    ids=["nothing", "nothing drafted", "no plain round", "known", "beyond the tokens a round"],
)
def test_a_speed_up_takes_drafts_and_plain_rounds(
    summary: StatisticsSummary, speed_up: float | None
) -> None:
    assert summary.speed_up == speed_up


def successors(line: Sequence[int], n_max: int) -> Iterator[int]:
    return (line[-1] + step for step in range(1, n_max + 1))


class TestCallbackPredictor(PredictorContract):
    @pytest.fixture
    def predictor(self) -> CallbackPredictor:
        predictor = CallbackPredictor(successors)
        predictor.n_wanted = 4
        return predictor

    @pytest.fixture
    def line(self) -> list[int]:
        return [1, 2, 3, 4, 5, 6, 7]


def test_a_number_is_a_guess_of_no_known_confidence() -> None:
    predictor = CallbackPredictor(lambda line, n_max: [7, DraftToken(8, 0.25)])
    predictor.reset([1])
    assert list(predictor.propose()) == [DraftToken(7, UNKNOWN_CONFIDENCE), DraftToken(8, 0.25)]
