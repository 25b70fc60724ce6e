from dataclasses import replace

import pytest

from app.chat.meters import N_NOTES, Meters
from app.format import NO_VALUE
from app.render.lines import plain
from app.render.panels import cache_lines, memory_lines
from app.render.status import status_line
from engine.cache.report import CacheNote, CacheReport
from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.events import (
    CommittedToken,
    Finished,
    FinishReason,
    GenerationStats,
    PromptProgress,
    PromptReady,
    RoundFinished,
    TiersChanged,
    TokenKind,
    TokensCommitted,
    Waiting,
    WorkerStopped,
)
from tests.app.chat.conftest import Clock
from tests.support.fakes_client import CONFIGURATION, loaded


def a_round(
    *, verdicts: tuple[bool, ...] = (True, False), saved_s: float | None = None
) -> RoundFinished:
    n_accepted = sum(verdicts)
    return RoundFinished(
        n_drafted=3, n_verified=len(verdicts), n_examined=len(verdicts), n_accepted=n_accepted,
        n_emitted=n_accepted + 1, source="lookup", length=3, next_length=4, reason="up",
        draft_s=0.0, verify_s=0.01, elapsed_s=0.012, plain_step_s=0.01,
        plain_spread=0.2, saved_s=saved_s,
        saved_error_s=None if saved_s is None else 0.3, verdicts=verdicts,
    )  # fmt: skip


def tokens(n: int) -> TokensCommitted:
    return TokensCommitted(tuple(CommittedToken(i, TokenKind.PLAIN) for i in range(n)), "x" * n)


@pytest.fixture
def meters(clock: Clock) -> Meters:
    meters = Meters(clock)
    meters.start_load(CONFIGURATION)
    meters.feed(loaded(CONFIGURATION))
    meters.start_reply()
    return meters


def test_the_status_shows_what_the_engine_waits_for(meters: Meters) -> None:
    meters.start_load(CONFIGURATION)
    meters.feed(Waiting("cellar:8080 cannot answer now (503), waited 10 s, of 300 s at most"))
    assert "cellar:8080 cannot answer now" in plain(status_line(meters.snapshot(), 120))
    meters.feed(Waiting(""))
    assert "cellar" not in plain(status_line(meters.snapshot(), 120))


def test_a_reply_without_drafts_keeps_the_saved_time(
    meters: Meters,
) -> None:
    drafted = GenerationStats(
        n_rounds=5, n_emitted=15, n_verified=10, n_accepted=10, decode_s=5.0, saved_s=1.5,
        saved_error_s=0.3,
    )  # fmt: skip
    plain = GenerationStats(n_rounds=48, n_emitted=48, decode_s=30.0)
    for stats in (plain, drafted, plain):
        meters.start_reply()
        meters.feed(Finished(FinishReason.END, "", (), "v", 1, stats))
    session = meters.snapshot().session
    assert (session.saved_s, session.saved_error_s) == (1.5, 0.3)


def test_the_session_adds_replies_and_the_running_one(meters: Meters) -> None:
    meters.feed(a_round())
    assert meters.snapshot().session.n_accepted == 1
    stats = GenerationStats(n_rounds=1, n_verified=2, n_accepted=1, n_emitted=2, decode_tps=50.0)
    meters.feed(Finished(FinishReason.END, "", (), "v", 1, stats))
    meters.start_reply()
    meters.feed(a_round())
    snapshot = meters.snapshot()
    assert snapshot.reply.n_accepted == 1
    assert snapshot.session.n_accepted == 2


def test_slow_and_stalled_models_have_a_live_speed(meters: Meters, clock: Clock) -> None:
    for _ in range(4):
        clock.now += 3.0
        meters.feed(tokens(1))
    assert meters.snapshot().decode_tps == pytest.approx(1 / 3)
    clock.now += 20.0
    assert meters.snapshot().decode_tps == pytest.approx(1 / 21)


def test_a_load_shows_the_draft_settings_of_its_configuration(meters: Meters) -> None:
    wanted = SpeculationSettings(PredictorName.LOOKUP, ControllerName.FIXED, n_draft=5)
    meters.start_load(replace(CONFIGURATION, speculation=wanted))
    assert "lookup" in plain(status_line(meters.snapshot(), 120))


def test_an_ended_engine_has_no_memory(meters: Meters) -> None:
    assert meters.snapshot().buffers
    meters.feed(WorkerStopped("", "", -9))
    snapshot = meters.snapshot()
    measured = next(row for row in map(plain, memory_lines(snapshot, 44)) if "measured" in row)
    hot = plain(cache_lines(snapshot, 44)[0])
    assert measured.split() == ["measured", NO_VALUE]
    assert hot.split() == ["hot", NO_VALUE]


def test_the_cache_log_is_bounded(meters: Meters) -> None:
    notes = tuple(CacheNote(float(i), str(i)) for i in range(N_NOTES + 5))
    meters.feed(TiersChanged(CacheReport(notes=notes)))
    assert meters.snapshot().cache_log[0].text == "5"
    assert len(meters.snapshot().cache_log) == N_NOTES


def test_a_continued_reply_shows_the_times_of_its_last_part(meters: Meters, clock: Clock) -> None:
    before = GenerationStats(first_token_s=199.0, prefill_s=198.0, n_emitted=5, decode_s=1.0)
    meters.start_reply(before=before)
    clock.now += 0.5
    meters.feed(PromptReady(9, n_hot=8, elapsed_s=0.4))
    meters.feed(tokens(1))
    running = meters.snapshot()
    assert (running.first_token_s, running.prefill_s) == (0.5, 0.4)
    stats = GenerationStats(first_token_s=0.5, prefill_s=0.4, n_emitted=1, decode_s=0.1)
    meters.feed(Finished(FinishReason.END, "", (), "v", 1, stats))
    finished = meters.snapshot()
    assert (finished.first_token_s, finished.prefill_s) == (0.5, 0.4)
    assert finished.reply.first_token_s == 199.0


def test_a_long_prompt_has_a_time_that_is_left(meters: Meters, clock: Clock) -> None:
    meters.feed(PromptProgress(100, 1100, 100))
    assert meters.snapshot().prefill_left_s is None
    clock.now += 10.0
    meters.feed(PromptProgress(300, 1100, 100))
    clock.now += 4.0
    assert meters.snapshot().prefill_left_s == pytest.approx(36.0)
    shown = plain(status_line(meters.snapshot(), 120))
    assert "36 s left" in shown
    assert "ctx 300/8k" in shown
