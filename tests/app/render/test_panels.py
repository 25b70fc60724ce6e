from dataclasses import replace

import pytest

from app.chat.entries import divider
from app.chat.history import SHORT_TITLE_CHARS, short_title
from app.chat.snapshot import CockpitSnapshot, Phase, PlannedBytes
from app.render.cache import cache_lines
from app.render.lines import plain, width_of
from app.render.speculation import speculation_lines
from app.render.status import memory_lines, status_line, throughput_lines
from app.render.transcript import EntryLines
from engine.cache.report import CacheReport, TierUse
from engine.events import (
    BufferSize,
    CacheChanged,
    GenerationStats,
    PositionCounts,
    PromptReady,
    SourceCounts,
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


def text(lines: list[tuple[object, ...]]) -> str:
    return "\n".join(plain(line) for line in lines)  # type: ignore[arg-type]


@pytest.mark.parametrize("snapshot", [BUSY, EMPTY])
@pytest.mark.parametrize("width", [20, 44, 70])
@pytest.mark.parametrize("render", [speculation_lines, cache_lines, memory_lines, throughput_lines])
def test_every_panel_fits_any_width(render: object, width: int, snapshot: CockpitSnapshot) -> None:
    assert all(width_of(line) <= width for line in render(snapshot, width))  # type: ignore[operator]


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
def test_shares_of_the_session_are_told_apart_from_those_of_a_reply(width: int) -> None:
    sources, places = {"suffix": SourceCounts(3, 3, 2, 1, 2)}, (PositionCounts(2, 1),)
    drafted = replace(BUSY.reply, n_verified=3, by_source=sources, by_position=places)
    plainly = replace(BUSY, reply=GenerationStats(n_rounds=4, n_emitted=4), session=drafted)
    for snapshot, is_session in ((plainly, True), (replace(BUSY, reply=drafted), False)):
        lines = text(speculation_lines(snapshot, width)).splitlines()
        shares = [line for line in lines if line.startswith("by ")]
        assert [line.endswith("  session") for line in shares] == [is_session] * 2


@pytest.mark.parametrize(("width", "height"), [(44, 10), (44, 15), (44, 21), (60, 21), (76, 11)])
def test_the_reason_is_read_in_full_in_every_size_that_the_panel_has(
    width: int, height: int
) -> None:
    lines = speculation_lines(FULL, width, height=height)
    assert len(lines) <= height
    words = text(lines).split("length is 4")[1].split()
    assert " ".join(words[: len(OFF_REASON.split())]) == OFF_REASON


def test_a_fault_stands_in_the_place_of_the_reason() -> None:
    broken = replace(FULL, fault="the draft predictor failed and is off: no room")
    lines = speculation_lines(broken, 60)
    assert "failed and is off: no room" in text(lines)
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
    said = plain(status_line(stopped, 60)).strip()
    assert said == "SmolLM2-135M-Instruct · Q4_1 · lookup · stopped", "nothing is in its context"


def test_the_name_of_a_hostile_file_is_only_text() -> None:
    named = CockpitSnapshot(model_name="evil\x1b[2J\nmodel")
    assert "\x1b" not in plain(status_line(named, 80))
    assert "\n" not in plain(status_line(named, 80))


def test_the_status_line_tells_slots_only_where_there_are_several() -> None:
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
