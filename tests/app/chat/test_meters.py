from dataclasses import replace

import pytest

from app.chat.meters import BIN_S, N_NOTES, Meters
from app.chat.snapshot import Phase
from app.format import NO_VALUE, share
from app.render.cache import cache_lines
from app.render.lines import plain
from app.render.status import memory_lines, status_line
from engine.cache.report import CacheNote, CacheReport
from engine.configuration import SpeculationSettings
from engine.events import (
    CommittedToken,
    Failed,
    Finished,
    FinishReason,
    GenerationStats,
    PromptProgress,
    PromptReady,
    RoundFinished,
    SpeculationChanged,
    TiersChanged,
    TokenKind,
    TokensCommitted,
    Waiting,
    WorkerStopped,
)
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


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meters(clock: Clock) -> Meters:
    meters = Meters(clock)
    meters.start_load(CONFIGURATION)
    meters.feed(loaded(CONFIGURATION))
    meters.start_reply()
    return meters


def test_phases_follow_the_events(clock: Clock) -> None:
    meters = Meters(clock)
    assert meters.phase is Phase.EMPTY
    meters.start_load(CONFIGURATION)
    assert meters.phase is Phase.LOADING
    meters.feed(loaded(CONFIGURATION))
    assert meters.phase is Phase.READY
    meters.start_reply()
    meters.feed(PromptProgress(1, 2, 0))
    assert meters.phase is Phase.PREFILL
    meters.feed(PromptReady(2, elapsed_s=0.1))
    assert meters.phase is Phase.DECODING
    meters.feed(WorkerStopped("", "", -9))
    assert meters.phase is Phase.STOPPED


def test_who_is_waited_for_is_shown_until_it_goes_on(meters: Meters) -> None:
    meters.start_load(CONFIGURATION)
    meters.feed(Waiting("cellar:8080 cannot answer now (503), waited 10 s, of 300 s at most"))
    assert "cellar:8080 cannot answer now" in plain(status_line(meters.snapshot(), 120))
    meters.feed(Waiting(""))
    assert "cellar" not in plain(status_line(meters.snapshot(), 120))


def test_counts_are_added_up_and_kept_apart(meters: Meters) -> None:
    meters.feed(a_round())
    meters.feed(a_round(verdicts=(True, True, True)))
    reply = meters.snapshot().reply
    assert (reply.n_drafted, reply.n_verified, reply.n_accepted, reply.n_emitted) == (6, 5, 4, 6)
    assert reply.n_refuted == 1
    assert reply.acceptance_rate == share(4, 5)
    assert reply.tokens_per_round == 3.0
    assert reply.by_source["lookup"].n_rounds == 2


def test_what_was_saved_is_what_the_engine_said_of_the_reply_so_far(meters: Meters) -> None:
    meters.feed(a_round())
    assert meters.snapshot().reply.saved_s is None
    meters.feed(a_round(saved_s=0.5))
    meters.feed(a_round(saved_s=0.4))
    shown = meters.snapshot()
    assert (shown.reply.saved_s, shown.reply.saved_error_s) == (0.4, 0.3)
    assert shown.plain_spread == 0.2


def test_a_reply_that_drafted_nothing_changes_nothing_of_what_the_session_saved(
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


def test_a_reply_that_was_cut_counts_in_the_session(meters: Meters) -> None:
    meters.feed(a_round())
    meters.feed(Failed("", ""))
    assert meters.snapshot().session.n_accepted == 1
    assert meters.phase is Phase.READY


def test_the_live_speed_is_that_of_the_last_seconds(meters: Meters, clock: Clock) -> None:
    for _ in range(40):
        meters.feed(tokens(5))
        clock.now += 0.1
    assert meters.snapshot().decode_tps == pytest.approx(50.0, rel=0.05)


def test_a_slow_model_has_a_live_speed_and_one_that_stalls_slows_down(
    meters: Meters, clock: Clock
) -> None:
    for _ in range(4):
        clock.now += 3.0
        meters.feed(tokens(1))
    assert meters.snapshot().decode_tps == pytest.approx(1 / 3)
    clock.now += 20.0
    assert meters.snapshot().decode_tps == pytest.approx(1 / 21)


def test_an_engine_that_is_gone_holds_no_memory(meters: Meters) -> None:
    assert meters.snapshot().buffers
    meters.feed(WorkerStopped("", "", -9))
    snapshot = meters.snapshot()
    measured = next(row for row in map(plain, memory_lines(snapshot, 44)) if "measured" in row)
    hot = plain(cache_lines(snapshot, 44)[0])
    assert measured.split() == ["measured", NO_VALUE]
    assert hot.split() == ["hot", NO_VALUE]


def test_the_first_token_is_timed_from_the_question(meters: Meters, clock: Clock) -> None:
    clock.now += 0.3
    meters.feed(tokens(1))
    assert meters.snapshot().first_token_s == pytest.approx(0.3)


def test_a_reply_that_goes_on_has_one_account(clock: Clock) -> None:
    meters = Meters(clock)
    first = GenerationStats(
        n_rounds=4, n_verified=5, n_accepted=1, n_emitted=5, decode_s=2.0, first_token_s=14.5,
        saved_s=-0.5, saved_error_s=0.1, decode_tps=2.5, prefill_s=1.0,
    )  # fmt: skip
    second = GenerationStats(
        n_rounds=2, n_verified=7, n_accepted=3, n_emitted=5, decode_s=1.0, first_token_s=3.0,
        saved_s=0.2, saved_error_s=0.1, decode_tps=5.0, prefill_s=2.0,
    )  # fmt: skip
    meters.start_reply(7, first)
    meters.feed(tokens(1), 7)
    meters.feed(a_round(saved_s=0.1), 7)
    shown = meters.snapshot(7)
    assert (shown.reply.n_verified, shown.reply.n_accepted) == (7, 2)
    assert shown.reply.saved_s == pytest.approx(-0.4)
    assert shown.first_token_s == 14.5
    assert shown.session.n_verified == 2
    meters.feed(Finished(FinishReason.END, "", (), "v", 1, second), 7)
    shown, whole = meters.snapshot(), first + second
    assert shown.reply == whole
    assert (shown.decode_tps, shown.first_token_s) == (whole.decode_tps, whole.first_token_s)
    assert shown.prefill_s == whole.prefill_s == 3.0
    assert shown.session.n_emitted == 5


def test_the_first_token_is_timed_by_the_engine_as_soon_as_it_says_so(
    meters: Meters, clock: Clock
) -> None:
    meters.start_reply()
    clock.now += 15.5
    meters.feed(tokens(1))
    meters.feed(replace(a_round(), first_token_s=14.5))
    assert meters.snapshot().first_token_s == 14.5


def test_histories_have_a_column_for_each_half_second(meters: Meters, clock: Clock) -> None:
    meters.feed(tokens(1))
    for verdicts in ((True, True), (False, False), ()):
        meters.feed(a_round(verdicts=verdicts))
        meters.feed(tokens(5))
        clock.now += BIN_S
        meters.snapshot()
    assert meters.snapshot().acceptance_history == (1.0, 0.0, None)
    assert len(meters.snapshot().tps_history) == 3


def test_a_new_model_begins_with_empty_counts(meters: Meters) -> None:
    meters.feed(a_round())
    meters.start_load(CONFIGURATION)
    assert meters.snapshot().session.n_verified == 0
    assert meters.snapshot().verdicts == ()


def test_a_fault_reaches_the_panel_and_goes_again() -> None:
    meters = Meters()
    meters.feed(SpeculationChanged("off", "auto", "the draft predictor failed and is off"))
    assert meters.snapshot().fault == "the draft predictor failed and is off"
    meters.feed(SpeculationChanged("lookup", "auto"))
    assert meters.snapshot().fault is None


def test_an_unusual_way_to_judge_drafts_is_shown_from_the_load_on_and_at_each_change() -> None:
    meters = Meters()
    drawn = SpeculationSettings(verification="rejection")
    meters.start_load(replace(CONFIGURATION, speculation=drawn))
    assert meters.snapshot().verification_label == ("rejection",)
    meters.feed(loaded(CONFIGURATION))
    assert meters.snapshot().verification_label == ()
    meters.set_speculation(replace(drawn, bonus_token=False))
    assert meters.snapshot().verification_label == ("rejection", "no bonus")


def test_the_last_report_of_the_cache_is_shown_and_notes_add_up(meters: Meters) -> None:
    for i in range(3):
        meters.feed(TiersChanged(CacheReport(notes=(CacheNote(float(i), f"note {i}"),))))
    shown = meters.snapshot()
    assert [note.text for note in shown.cache_log] == ["note 0", "note 1", "note 2"]
    assert shown.tiers is not None
    assert [note.text for note in shown.tiers.notes] == ["note 2"]


def test_the_log_of_the_cache_forgets_its_oldest_lines(meters: Meters) -> None:
    notes = tuple(CacheNote(float(i), str(i)) for i in range(N_NOTES + 5))
    meters.feed(TiersChanged(CacheReport(notes=notes)))
    assert meters.snapshot().cache_log[0].text == "5"
    assert len(meters.snapshot().cache_log) == N_NOTES


def test_a_load_ends_the_report_and_keeps_the_log(meters: Meters) -> None:
    meters.feed(TiersChanged(CacheReport(notes=(CacheNote(1.0, "written"),))))
    several = replace(CONFIGURATION, n_slots=4)
    meters.start_load(several)
    assert meters.snapshot().tiers is None
    assert meters.snapshot().n_slots == 4
    meters.feed(loaded(several))
    assert [note.text for note in meters.snapshot().cache_log] == ["written"]


def test_the_report_of_an_engine_that_is_gone_is_not_shown(meters: Meters) -> None:
    meters.feed(TiersChanged(CacheReport()))
    meters.feed(WorkerStopped("", "", -9))
    assert meters.snapshot().tiers is None
