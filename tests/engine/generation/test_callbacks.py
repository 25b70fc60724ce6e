"""A decoder around two functions: the target's text, in fewer calls, whatever the draft does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Backend
from engine.backends.callback import CallbackBackend, EventLoop
from engine.configuration import (
    ControllerName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import DecodeError, EngineError, PresetError, TokenError
from engine.events import (
    Event,
    Finished,
    FinishReason,
    RoundFinished,
    SpeculationChanged,
    TokensCommitted,
)
from engine.generation.callbacks import (
    CallbackDecoder,
    DraftCallback,
    SettingsChanged,
)
from engine.sampling import Sampler
from engine.testing import FakeBackend
from tests.contracts.backend import BackendContract
from tests.support.clock import Clock

Rows = NDArray[np.float32]
N_VOCAB = 12
END = 11
PROMPT = (1, 2, 3)
GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.9, top_k=6)
FIXED = SpeculationSettings(controller=ControllerName.FIXED, n_draft=3)


def row(which: int, line: Sequence[int], n_vocab: int = N_VOCAB) -> Rows:
    """Target (0) and draft (1) agree in part, by the last two tokens."""
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
        n_vocab=N_VOCAB,
        is_end=lambda token: token == END,
        settings=settings,
        sampling=sampling,
    )


def finished(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def own_text(sampling: SamplingSettings, max_tokens: int) -> tuple[int, ...]:
    sampler, line = Sampler(sampling, seed=3), list(PROMPT)
    while len(line) - len(PROMPT) < max_tokens and (line[-1] != END or len(line) == len(PROMPT)):
        line.append(sampler.sample(row(0, line), line, len(line)))
    made = tuple(line[len(PROMPT) :])
    return made[:-1] if made and made[-1] == END else made


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 7, 60])
@pytest.mark.parametrize("controller", ControllerName)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_the_text_is_the_targets_own(
    sampling: SamplingSettings, which: int, controller: ControllerName, max_tokens: int
) -> None:
    wanted = own_text(sampling, max_tokens)
    for n_draft, bonus in product((1, 4, 16), (True, False)):
        settings = replace(FIXED, controller=controller, n_draft=n_draft, bonus_token=bonus)
        made = decoder(drafting(which), sampling=sampling, settings=settings)
        assert made.decode(PROMPT, max_tokens=max_tokens, seed=3) == wanted


def test_a_perfect_draft_takes_a_call_for_each_full_round_and_none_more() -> None:
    target = Target()
    settings = replace(FIXED, n_draft=3)
    made = decoder(drafting(0), target, settings=settings)
    text = made.decode(PROMPT, max_tokens=13)
    assert len(text) == 13
    assert [len(draft) for draft in target.drafts] == [0, 3, 3, 3]
    assert made.metrics.total("rounds_total") == len(target.drafts)


def test_events_have_each_round_with_its_draft_and_verdict_and_the_end() -> None:
    events = list(decoder(drafting(1)).events(PROMPT, max_tokens=20))
    reported = [each for each in events if isinstance(each, RoundFinished)]
    tokens = [t.token for e in events if isinstance(e, TokensCommitted) for t in e.tokens]
    end = finished(events)
    assert tuple(tokens)[: len(end.token_ids)] == end.token_ids == own_text(GREEDY, 20)
    assert sum(each.n_emitted for each in reported) == len(tokens)
    assert {each.source for each in reported if each.n_verified} == {"callback"}
    assert end.reason is (FinishReason.END if tokens[-1] == END else FinishReason.LENGTH)


def test_metrics_add_up_over_calls_can_be_shown_and_start_again() -> None:
    made = decoder(drafting(1))
    made.decode(PROMPT, max_tokens=20)
    once = made.metrics.total("tokens_total")
    made.decode(PROMPT, max_tokens=20)
    assert made.metrics.total("tokens_total") == 2 * once > 0
    n_accepted = int(made.metrics.total("accepted_tokens_total"))
    n_refuted = int(made.metrics.total("verified_tokens_total")) - n_accepted
    shown = made.metrics.summary()
    assert f"{n_accepted} accepted, {n_refuted} refuted" in shown
    made.reset()
    assert made.metrics.total("tokens_total") == 0
    assert "unknown" in made.metrics.summary()


def test_a_reset_forgets_what_the_controller_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("engine.clock.time", SimpleNamespace(perf_counter=clock))

    def row_of_two(line: Sequence[int], draft: Sequence[int]) -> Rows:
        clock.at += 0.001  # a step costs the same with drafts
        return np.stack([np.eye(N_VOCAB)[1] for _ in range(len(draft) + 1)])

    auto = replace(FIXED, controller=ControllerName.AUTO)
    made = decoder(lambda line, n_max: [1] * n_max, row_of_two, settings=auto)

    def n_plain_at_first() -> int:
        rounds = (e for e in made.events(PROMPT, max_tokens=60) if isinstance(e, RoundFinished))
        return next(n for n, each in enumerate(rounds) if each.n_verified)

    first, second = n_plain_at_first(), n_plain_at_first()
    assert second < first, "the plain step is known"
    made.reset()
    assert n_plain_at_first() == first


@pytest.mark.parametrize(
    "draft",
    [
        lambda line, n_max: 1 / 0,
        lambda line, n_max: [N_VOCAB],
        lambda line, n_max: [-1],
        lambda line, n_max: ["a"],
        lambda line, n_max: None,
    ],
)
def test_a_draft_function_that_fails_is_left_out_and_reported_once(draft: DraftCallback) -> None:
    events = list(decoder(draft).events(PROMPT, max_tokens=12))
    notes = [e.note for e in events if isinstance(e, SpeculationChanged) and e.note]
    assert len(notes) == 1
    assert finished(events).token_ids == own_text(GREEDY, 12)


def test_a_draft_function_that_failed_is_tried_again_in_the_next_reply() -> None:
    fails = [True]

    def draft(line: Sequence[int], n_max: int) -> Iterator[int]:
        if fails[0]:
            raise OSError("the server is gone")
        return drafting(0)(line, n_max)  # type: ignore[return-value]  # a generator

    made = decoder(draft)
    made.decode(PROMPT, max_tokens=12)
    assert made.metrics.total("drafted_tokens_total") == 0
    fails[0] = False
    made.decode(PROMPT, max_tokens=12)
    assert made.metrics.total("drafted_tokens_total") > 0


@pytest.mark.parametrize(
    "target",
    [
        lambda line, draft: np.zeros((len(draft), N_VOCAB)),
        lambda line, draft: np.zeros(N_VOCAB),
        lambda line, draft: "text",
        lambda line, draft: np.full((len(draft) + 1, N_VOCAB), np.nan),
        lambda line, draft: np.full((len(draft) + 1, N_VOCAB), -np.inf),
    ],
)
def test_a_target_function_without_logits_is_an_error(target: Callable[..., Any]) -> None:
    with pytest.raises(DecodeError):
        decoder(drafting(0), target).decode(PROMPT, max_tokens=9)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error"),
    [
        ((), 4, PresetError),
        (PROMPT, -1, PresetError),
        ((1, -1), 4, TokenError),
        ((1, N_VOCAB), 4, TokenError),
    ],
)
def test_a_prompt_that_cannot_be_decoded_is_refused(
    prompt: tuple[int, ...], max_tokens: int, error: type[EngineError]
) -> None:
    with pytest.raises(error):
        decoder(drafting(0)).decode(prompt, max_tokens=max_tokens)


# --- settings ---


def test_a_change_of_settings_is_reported_and_applies_from_the_next_round_on() -> None:
    reported: list[SettingsChanged] = []
    made = decoder(drafting(0), settings=replace(FIXED, n_draft=2))
    stop = made.subscribe(reported.append)
    lengths: list[int] = []
    for event in made.events(PROMPT, max_tokens=40):
        if isinstance(event, RoundFinished):
            lengths.append(event.n_verified)
            if len(lengths) == 3:
                made.update_settings(n_draft=5)
    assert lengths[:3] == [0, 2, 2]
    assert max(lengths) == 5
    assert [each.changed for each in reported] == [("n_draft",)]
    assert (reported[0].before.n_draft, reported[0].after.n_draft) == (2, 5)
    made.update_settings(n_draft=5)
    stop()
    made.update_settings(n_draft=1)
    assert len(reported) == 1
    assert made.settings.n_draft == 1


# --- from an event loop ---


class Slow:
    """Asynchronous functions around plain ones, which count what runs at once."""

    def __init__(self) -> None:
        self.n_running = self.n_closed = 0
        self.threads: set[int] = set()
        self.hangs = False

    async def target(self, line: Sequence[int], draft: Sequence[int]) -> Rows:
        self.n_running += 1
        self.threads.add(threading.get_ident())
        try:
            await asyncio.sleep(3600 if self.hangs else 0)
            return Target()(line, draft)
        finally:
            self.n_running -= 1

    async def draft(self, line: Sequence[int], n_max: int) -> AsyncIterator[int]:
        try:
            tokens = list(line)
            while True:
                await asyncio.sleep(0)
                tokens.append(int(row(1, tokens).argmax()))
                yield tokens[-1]
        finally:
            self.n_closed += 1


async def test_asynchronous_functions_run_on_the_callers_loop_and_give_the_same_text() -> None:
    slow = Slow()
    made = decoder(slow.draft, slow.target)
    reported: list[int] = []
    end = await made.generate(PROMPT, max_tokens=30, on_token=reported.append)
    assert end.token_ids == own_text(GREEDY, 30)
    assert tuple(reported)[: len(end.token_ids)] == end.token_ids
    assert slow.threads == {threading.get_ident()}
    assert slow.n_closed > 0
    assert made.metrics.total("accepted_tokens_total") > 0


async def test_a_coroutine_gives_a_whole_draft_and_on_token_is_awaited() -> None:
    async def draft(line: Sequence[int], n_max: int) -> list[int]:
        return list(drafting(0)(line, n_max))  # type: ignore[arg-type]  # a generator

    async def note(token: int) -> None:
        await asyncio.sleep(0)
        reported.append(token)

    reported: list[int] = []
    made = decoder(draft)
    end = await made.generate(PROMPT, max_tokens=9, on_token=note)
    assert end.token_ids == own_text(GREEDY, 9)
    assert tuple(reported)[: len(end.token_ids)] == end.token_ids
    assert made.metrics.total("accepted_tokens_total") > 0


async def test_plain_functions_do_not_hold_up_the_loop() -> None:
    ticks = [0]

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    def target(line: Sequence[int], draft: Sequence[int]) -> Rows:
        seen = ticks[0]
        while ticks[0] == seen:  # only a loop that goes on lets this end
            threading.Event().wait(0.001)
        return Target()(line, draft)

    ticking = asyncio.create_task(tick())
    end = await decoder(drafting(0), target).generate(PROMPT, max_tokens=6)
    ticking.cancel()
    assert end.token_ids == own_text(GREEDY, 6)


async def test_what_on_token_raises_ends_the_reply_and_the_next_one_works() -> None:
    def refuse(token: int) -> None:
        raise LookupError(f"enough at {token}")

    slow = Slow()
    made = decoder(slow.draft, slow.target)
    with pytest.raises(LookupError, match="enough"):
        await made.generate(PROMPT, max_tokens=30, on_token=refuse)
    assert slow.n_running == 0
    assert (await made.generate(PROMPT, max_tokens=30)).token_ids == own_text(GREEDY, 30)


async def test_a_cancelled_task_cancels_what_it_awaits() -> None:
    slow = Slow()
    slow.hangs = True
    made = decoder(slow.draft, slow.target)
    reply = asyncio.create_task(made.generate(PROMPT, max_tokens=30))
    while not slow.n_running:
        await asyncio.sleep(0.001)
    reply.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reply
    assert slow.n_running == 0
    slow.hangs = False
    made.reset()
    assert (await made.generate(PROMPT, max_tokens=5)).token_ids == own_text(GREEDY, 5)


async def test_two_replies_at_once_are_refused() -> None:
    slow = Slow()
    made = decoder(slow.draft, slow.target)
    replies = (made.generate(PROMPT, max_tokens=30) for _ in range(2))
    first, second = await asyncio.gather(*replies, return_exceptions=True)
    assert isinstance(second, EngineError)
    assert isinstance(first, Finished)
    assert first.token_ids == own_text(GREEDY, 30)


def test_asynchronous_functions_without_a_loop_are_refused() -> None:
    with pytest.raises(DecodeError, match="`generate`"):
        decoder(drafting(0), Slow().target).decode(PROMPT, max_tokens=5)


# --- what it is made of ---


class TestCallbackBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        fake = FakeBackend(n_ctx=64)

        def target(line: Sequence[int], draft: Sequence[int]) -> Rows:
            return np.stack([fake.logits_after((*line, *draft[:n])) for n in range(len(draft) + 1)])

        n_vocab = fake.vocabulary.n_tokens
        return CallbackBackend(target, EventLoop(), n_vocab, fake.vocabulary.is_end, 64)

    @pytest.fixture
    def line(self) -> list[int]:
        return [(7 * n) % 251 for n in range(64)]

    def test_pieces_join_to_the_tokenised_text(self, backend: Backend) -> None:
        assert backend.vocabulary.piece(3) == b""  # numbers are all that a function knows
