"""The panels and the status line; the origin of a prompt's tokens."""

import re
from dataclasses import replace
from itertools import product

import pytest

from app.chat.entries import divider
from app.chat.history import SHORT_TITLE_CHARS, short_title
from app.chat.snapshot import CockpitSnapshot, Phase, PlannedBytes
from app.format import NO_VALUE
from app.render.lines import plain, width_of
from app.render.panels import cache_lines, memory_lines, speculation_lines, throughput_lines
from app.render.reuse import reuse_lines, reuse_text
from app.render.status import status_line
from app.render.transcript import EntryLines
from engine.cache.report import CacheCounts, CacheNote, CacheReport, TierUse
from engine.events import (
    BufferSize,
    CacheChanged,
    GenerationStats,
    PositionCounts,
    PromptProgress,
    PromptReady,
    ReadCause,
    SourceCounts,
    ThreadsChanged,
)
from engine.memory.units import MIB

BUSY = CockpitSnapshot(
    phase=Phase.DECODING,
    model_name="SmolLM2-135M-Instruct.Q4_1",
    file_type="Q4_1",
    n_ctx=8192,
    predictor="lookup",
    controller="fixed",
    n_draft=3,
    next_length=4,
    reason="up: 5 of 5 accepted",
    reply=GenerationStats(
        n_rounds=100,
        n_drafted=200,
        n_verified=180,
        n_accepted=120,
        n_emitted=230,
        decode_s=3.0,
        by_source={"lookup": SourceCounts(200, 180, 150, 120, 90)},
        saved_s=1.4,
        saved_error_s=0.1,
    ),
    session=GenerationStats(
        n_rounds=1000,
        n_drafted=2000,
        n_verified=1800,
        n_accepted=1200,
        n_emitted=2300,
        decode_s=30.0,
        saved_s=14.0,
        saved_error_s=0.3,
    ),
    verdicts=(True, False) * 30,
    acceptance_history=(0.2, None, 0.9),
    tps_history=(70.0, 80.0),
    decode_tps=74.2,
    first_token_s=0.31,
    cache=CacheChanged(1200, 8192, 180 * MIB),
    prompt=PromptReady(1163, n_hot=1104),
    buffers=(BufferSize("CPU", "model", 92 * MIB), BufferSize("CPU", "KV", 180 * MIB)),
    planned=PlannedBytes(272 * MIB, 100 * MIB),
    process_bytes=310 * MIB,
)
EMPTY = CockpitSnapshot()
HOT = TierUse("hot", 2, 1200, 27 * MIB, 180 * MIB, 8192)
WARM = TierUse("warm", 3, 4100, 92 * MIB, 1024 * MIB)
COLD = TierUse("cold", 41, 90_500, 1990 * MIB, 8192 * MIB)
COUNTS = CacheCounts(
    n_hits=14, n_misses=1, n_evictions=2, n_promotions=3, n_demotions=4, n_prefetches=5,
    n_hot_tokens=12_300, n_cold_tokens=900, n_computed_tokens=4_000, saved_s=12.3,
)  # fmt: skip
CACHED = CockpitSnapshot(
    n_ctx=8192,
    n_slots=2,
    cache=CacheChanged(1200, 8192, 180 * MIB),
    prompt=PromptReady(1163, n_hot=900, n_cold=204, restore_s=0.012),
    tiers=CacheReport((HOT, WARM, COLD), COUNTS),
    cache_log=(CacheNote(0.0, "older"), CacheNote(3600.0, "wrote 2 snapshots of 31 MiB")),
)
CACHE_OFF = replace(
    CACHED,
    tiers=CacheReport((HOT, TierUse("warm", 0, 0, 0, 0), TierUse("cold", 0, 0, 0, 0))),
    cache_log=(),
)
EDITED = PromptReady(
    1163, n_hot=900, n_copied=100, n_cold=50, elapsed_s=0.41, restore_s=0.012,
    reused_prefill_s=7.6, computed_restore_s=0.003, n_common=950, cause=ReadCause.EDITED,
    text_before="user\n", old_text="Why\x1b[2J", new_text="How",
)  # fmt: skip


def text(lines: list[tuple[object, ...]]) -> str:
    return "\n".join(plain(line) for line in lines)  # type: ignore[arg-type]


RENDERS = (speculation_lines, cache_lines, memory_lines, throughput_lines)


@pytest.mark.parametrize("render", RENDERS)
def test_every_panel_fits_any_width(render: object) -> None:
    for snapshot, width in product((BUSY, EMPTY, CACHED, CACHE_OFF), (1, 20, 44, 70)):
        lines = render(snapshot, width)  # type: ignore[operator]
        assert all(width_of(line) <= width for line in lines), width


OFF_REASON = "off: a drafted token costs 0.31 steps, assuming 22% right (1,204 of 5,391 tokens)"
FULL = replace(
    BUSY,
    reason=OFF_REASON,
    reply=replace(
        BUSY.reply,
        by_source={
            "lookup": SourceCounts(100, 80, 60, 40, 50),
            "suffix": SourceCounts(100, 100, 90, 80, 40),
        },
        by_position=(PositionCounts(100, 90), PositionCounts(80, 40)),
    ),
)


@pytest.mark.parametrize("width", [33, 44, 76])
def test_shares_of_the_session_are_labelled_if_the_reply_drafted_nothing(width: int) -> None:
    sources, places = {"suffix": SourceCounts(3, 3, 2, 1, 2)}, (PositionCounts(2, 1),)
    drafted = replace(BUSY.reply, n_verified=3, by_source=sources, by_position=places)
    undrafted = replace(BUSY, reply=GenerationStats(n_rounds=4, n_emitted=4), session=drafted)
    for snapshot, is_session in ((undrafted, True), (replace(BUSY, reply=drafted), False)):
        lines = text(speculation_lines(snapshot, width)).splitlines()
        shares = [line for line in lines if line.startswith("by ")]
        assert ["session: " in line for line in shares] == [is_session] * 2


@pytest.mark.parametrize("width", [44, 60, 76])
def test_the_reason_is_readable_in_full_in_the_smallest_panel(width: int) -> None:
    words = text(speculation_lines(FULL, width)[:10]).split("drafts of 4")[1].split()
    assert " ".join(words[: len(OFF_REASON.split())]) == OFF_REASON


def test_a_fault_stands_in_the_place_of_the_reason() -> None:
    broken = replace(FULL, fault="the draft predictor failed and is off: no space")
    lines = speculation_lines(broken, 60)
    assert "failed and is off: no space" in text(lines)
    assert OFF_REASON[:20] not in text(lines)
    assert any(run.style == "warn" for runs in lines for run in runs)


def test_pages_of_repacked_weights_are_reclaimable_and_no_fault_of_the_plan() -> None:
    buffers = (
        BufferSize("CPU_Mapped", "model", 92 * MIB),
        BufferSize("CPU_REPACK", "model", 50 * MIB),
        BufferSize("CPU", "KV", 180 * MIB),
    )
    repacked = replace(
        BUSY, buffers=buffers, planned=PlannedBytes(272 * MIB, 0, 50 * MIB), process_bytes=362 * MIB
    )
    rows = [plain(line) for line in memory_lines(repacked, 60)]
    assert rows[1] == "measured     272 MiB  as planned"
    assert rows[2] == "process      362 MiB  50 MiB reclaimable"
    assert "model 92" in rows[3]


def test_that_the_engine_has_stopped_is_never_cut_from_the_status_line() -> None:
    stopped = replace(BUSY, phase=Phase.STOPPED)
    shown = plain(status_line(stopped, 60)).strip()
    assert shown == "SmolLM2-135M-Instruct · stopped · Q4_1 · lookup"


def test_the_name_of_a_hostile_file_is_only_text() -> None:
    named = CockpitSnapshot(model_name="evil\x1b[2J\nmodel")
    assert "\x1b" not in plain(status_line(named, 80))
    assert "\n" not in plain(status_line(named, 80))


def test_the_status_line_shows_slots_only_if_there_are_several() -> None:
    report = CacheReport((TierUse("hot", 2, 1200, 27 * MIB, 180 * MIB, 8192),))
    assert "slots" not in plain(status_line(replace(BUSY, tiers=report), 120))
    several = replace(BUSY, n_slots=4)
    assert "slots" not in plain(status_line(several, 120))
    assert "15% · slots 2/4 · 74 tok/s" in plain(status_line(replace(several, tiers=report), 120))


def test_a_summary_stands_below_the_rule_and_does_nothing_to_the_terminal() -> None:
    lines = [plain(line) for line in EntryLines(divider("They \x1b[2J spoke of rivers.")).lines(60)]
    assert "sees this summary" in lines[0]
    assert "spoke of rivers." in lines[1]
    assert "\x1b" not in lines[1]


def test_the_status_line_names_the_chat_that_is_answered_in_the_background() -> None:
    snapshot = CockpitSnapshot(
        phase=Phase.DECODING, model_name="Tiny", predictor="off", background_title="All\nabout " * 9
    )
    shown = plain(status_line(snapshot, 80))
    assert shown.startswith(" Tiny · answering “All about")
    assert "…”" in shown
    assert len(short_title("x" * 99)) == SHORT_TITLE_CHARS


# --- KV cache ---


def cache_rows(snapshot: CockpitSnapshot, width: int = 60) -> list[str]:
    return text(cache_lines(snapshot, width)).splitlines()


def test_the_cache_panel_shows_tiers_prefix_reuse_and_moves() -> None:
    assert cache_rows(CACHED, 44) == [
        "hot    █▋░░░░░░░░░   1.2k/8k tok    27M/180M",
        "warm   █░░░░░░░░░░      4.1k tok      92M/1G",
        "cold   ██▋░░░░░░░░     90.5k tok    1.94G/8G",
        "prefix 1,104 of 1,163: 900 hot, 204 cold,",
        "       restored in 12 ms",
        "reuse  14 restored, 1 missed, +12.3 s saved",
        "moves  3 promoted, 4 demoted, 2 evicted, 5",
        "       prefetched",
        "total  12.3k hot, 900 cold, 4.0k computed",
    ]


def test_the_context_of_one_slot_is_as_of_its_last_round() -> None:
    old = CacheReport((replace(HOT, n_entries=1, n_tokens=1), WARM, COLD))
    shown = cache_rows(replace(CACHED, n_slots=1, tiers=old))
    assert "1.2k/8k" in shown[0]
    assert "4.1k tok" in shown[1]
    assert "1/8k" in cache_rows(replace(CACHED, tiers=old))[0]


def test_before_the_first_report_only_the_context_is_known() -> None:
    shown = cache_rows(replace(CACHED, tiers=None, cache_log=()))
    assert "1.2k/8k" in shown[0]
    assert shown[1] == f"warm   {NO_VALUE}"
    assert cache_rows(EMPTY) == [
        f"{name:<7}{NO_VALUE}" for name in ("hot", "warm", "cold", "prefix")
    ]
    assert cache_rows(CACHE_OFF)[1:3] == ["warm   off", "cold   off"]


def test_no_saved_time_is_shown_before_any_was_measured() -> None:
    def reuse(counts: CacheCounts) -> str:
        tiers = CacheReport((HOT, WARM, COLD), counts)
        return next(row for row in cache_rows(replace(CACHED, tiers=tiers)) if "reuse" in row)

    assert reuse(CacheCounts()) == "reuse  0 restored, 0 missed"
    restored = CacheCounts(n_hits=1, n_cold_tokens=61)
    assert reuse(restored) == f"reuse  1 restored, 0 missed, {NO_VALUE} saved"


# --- the last prompt ---


def test_a_prompt_has_origins_difference_and_times() -> None:
    lines = reuse_lines(CockpitSnapshot(prompt=EDITED), 200)
    assert text(lines).splitlines() == [
        "prompt 1,163 tokens: 800 from the context, 100 from another slot, 50 from disk, "
        "213 computed",
        "why    a message of the chat changed",
        "at     token 951, after “user␊”",
        "was    “Why␛[2J”",
        "is     “How”",
        "reused restored in 12 ms; a prefill takes 7.6 s",
        "rest   computed in 410 ms; restoring the same number of tokens takes 3.0 ms",
    ]
    assert reuse_text(EDITED) == text(lines)
    for width in (8, 20, 46):
        narrow = reuse_lines(CockpitSnapshot(prompt=EDITED), width)
        assert all(width_of(line) <= max(width, 15) for line in narrow)


def test_the_first_prompt_after_a_restored_state_is_no_first_prompt() -> None:
    hit = PromptReady(437, n_cold=419, cause=ReadCause.FIRST)
    assert "saved state" in reuse_text(hit)
    assert "first prompt" not in reuse_text(hit)
    assert "first prompt" in reuse_text(PromptReady(437, cause=ReadCause.FIRST))


def test_prefill_threads_and_lost_time_are_shown() -> None:
    reading = replace(
        BUSY,
        phase=Phase.PREFILL,
        prefill=PromptProgress(256, 1024, 0),
        threads=ThreadsChanged(2, 4),
    )
    shown = "\n".join(map(plain, throughput_lines(reading, 60, "block")))
    assert re.search(r"prefill .*256/1,024", shown)
    assert "2, 4 for prompts" in shown
    waits = replace(reading, prefill=None, threads=ThreadsChanged(3, 3))
    shown = "\n".join(map(plain, throughput_lines(waits, 60, "block")))
    assert re.search(r"prefill +…", shown)
    assert "for prompts" not in shown
    counts = CacheCounts(n_hits=2, n_misses=1, saved_s=-3.0)
    slow = replace(BUSY, tiers=CacheReport(counts=counts))
    assert "2 restored, 1 missed, 3.0 s lost" in "\n".join(
        map(plain, cache_lines(slow, 60, "block"))
    )


def test_replies_in_other_chats_are_counted_in_the_status_line() -> None:
    one = plain(status_line(replace(BUSY, n_beside=1), 200))
    assert "answering 1 other chat" in one
    several = replace(BUSY, n_beside=2, background_title="garden")
    assert "answering “garden” · and 2 more" in plain(status_line(several, 200))
    unknown = replace(BUSY, is_of_chat=False, n_of_chat=None)
    assert f"ctx {NO_VALUE}/8k" in plain(status_line(unknown, 200))
