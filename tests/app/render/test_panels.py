from dataclasses import replace

import pytest

from app.chat.snapshot import CockpitSnapshot, Phase, PlannedBytes
from app.format import NO_VALUE
from app.render.cache import cache_lines
from app.render.lines import plain, width_of
from app.render.speculation import speculation_lines, speculation_title
from app.render.status import memory_lines, status_line, throughput_lines
from engine.cache.report import CacheReport, TierUse
from engine.events import (
    BufferSize,
    CacheChanged,
    GenerationStats,
    PositionCounts,
    PromptProgress,
    PromptReady,
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


def text(lines: list[tuple[object, ...]]) -> str:
    return "\n".join(plain(line) for line in lines)  # type: ignore[arg-type]


@pytest.mark.parametrize("snapshot", [BUSY, EMPTY])
@pytest.mark.parametrize("width", [20, 44, 70])
@pytest.mark.parametrize("render", [speculation_lines, cache_lines, memory_lines, throughput_lines])
def test_every_panel_fits_any_width(render: object, width: int, snapshot: CockpitSnapshot) -> None:
    assert all(width_of(line) <= width for line in render(snapshot, width))  # type: ignore[operator]


OFF_REASON = "off: a drafted token costs 0.31 steps, taken as 22% right (1,204 of 5,391 guesses)"
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


def test_speculation_shows_every_figure_beside_its_name() -> None:
    shown = text(speculation_lines(BUSY, 44))
    for part in ("67%", "validated          120", "refuted             60", "1,200", "2.30",
                 "lookup 120/180 67%", "length is 4  up: 5 of 5 accepted",
                 "▪✗▪✗", "+1.4 s"):  # fmt: skip
        assert part in shown


def test_the_context_of_another_chat_is_not_told_as_this_one_s() -> None:
    assert "ctx 1.2k/8k" in plain(status_line(BUSY, 120))
    assert f"ctx {NO_VALUE}/8k" in plain(status_line(replace(BUSY, is_of_chat=False), 120))


@pytest.mark.parametrize("width", [33, 44, 76])
def test_shares_of_the_session_are_told_apart_from_those_of_a_reply(width: int) -> None:
    sources, places = {"suffix": SourceCounts(3, 3, 2, 1, 2)}, (PositionCounts(2, 1),)
    drafted = replace(BUSY.reply, n_verified=3, by_source=sources, by_position=places)
    plainly = replace(BUSY, reply=GenerationStats(n_rounds=4, n_emitted=4), session=drafted)
    for snapshot, is_session in ((plainly, True), (replace(BUSY, reply=drafted), False)):
        lines = text(speculation_lines(snapshot, width)).splitlines()
        shares = [line for line in lines if line.startswith("by ")]
        assert [line.endswith("  session") for line in shares] == [is_session] * 2


@pytest.mark.parametrize(("controller", "length"), [("fixed", "3"), ("auto", NO_VALUE)])
def test_no_length_is_claimed_before_auto_chose_one(controller: str, length: str) -> None:
    unasked = replace(BUSY, controller=controller, next_length=None)
    assert f"length is {length}" in text(speculation_lines(unasked, 44))


def test_the_longest_length_stands_apart_from_its_reason() -> None:
    assert "length is 16 up: 5 of 5" in text(speculation_lines(replace(BUSY, next_length=16), 44))


@pytest.mark.parametrize(("width", "height"), [(44, 10), (44, 15), (44, 21), (60, 21), (76, 11)])
def test_the_reason_is_read_in_full_in_every_size_that_the_panel_has(
    width: int, height: int
) -> None:
    lines = speculation_lines(FULL, width, height=height)
    assert len(lines) <= height
    words = text(lines).split("length is 4")[1].split()
    assert " ".join(words[: len(OFF_REASON.split())]) == OFF_REASON


def test_a_reason_that_is_longer_than_the_panel_says_that_it_goes_on() -> None:
    long = replace(FULL, fault="the predictor failed: " + "a long story " * 60)
    lines = speculation_lines(long, 44, height=15)
    assert len(lines) <= 15
    assert plain(lines[-1]).endswith("…")


def test_a_fault_stands_in_the_place_of_the_reason() -> None:
    broken = replace(FULL, fault="the draft predictor failed and is off: no room")
    lines = speculation_lines(broken, 60)
    assert "failed and is off: no room" in text(lines)
    assert OFF_REASON[:20] not in text(lines)
    assert any(run.style == "warn" for runs in lines for run in runs)


def test_sources_and_places_have_shares_and_the_best_source_comes_first() -> None:
    shown = text(speculation_lines(FULL, 60))
    assert "by source    suffix 80/100 80% · lookup 40/80 50%" in shown
    assert "by position  █▅  90% 50%" in shown
    styles = {run.text: run.style for line in speculation_lines(FULL, 60) for run in line}
    assert styles["suffix"] == "source-suffix"


@pytest.mark.parametrize(
    ("error_s", "shown", "style"),
    [(0.02, "-0.42 s", "bad"), (0.2, "~-0.42 s", "bad"), (0.5, NO_VALUE, ""), (None, NO_VALUE, "")],
    ids=["clear", "rough", "noise", "unknown"],
)
def test_a_loss_of_time_has_its_sign_and_colour_unless_it_may_be_noise(
    error_s: float | None, shown: str, style: str
) -> None:
    losing = replace(BUSY, reply=replace(BUSY.reply, saved_s=-0.42, saved_error_s=error_s))
    row = next(r for r in speculation_lines(losing, 44) if "time saved" in plain(r))
    assert [(run.text.strip(), run.style) for run in row[1:2]] == [(shown, style)]


def test_a_noisy_machine_is_said_beside_the_speed_and_marks_it() -> None:
    noisy = replace(BUSY, plain_spread=0.35)
    assert "decode       74 tok/s noisy ±35%" in text(throughput_lines(noisy, 36))
    assert "noisy" not in text(throughput_lines(replace(BUSY, plain_spread=0.04), 36))
    wild = replace(BUSY, plain_spread=4.16)
    assert "noisy >±100%" in text(throughput_lines(wild, 40)), "no speed is below zero"
    assert " · ~74 tok/s · " in plain(status_line(noisy, 100))


def test_nothing_is_claimed_before_it_was_measured() -> None:
    shown = text(speculation_lines(EMPTY, 44))
    assert "0%" not in shown
    assert f"time saved           {NO_VALUE}" in shown


def test_the_title_says_which_predictor_is_on() -> None:
    assert speculation_title(BUSY) == "speculation · lookup · fixed"
    judged = replace(BUSY, verification_label=("rejection", "no bonus"))
    assert speculation_title(judged) == "speculation · lookup · fixed · rejection · no bonus"


def test_the_cache_shows_cells_bytes_and_the_reused_prefix() -> None:
    shown = text(cache_lines(BUSY, 44))
    for part in ("1,200 of 8,192 cells", "15%", "26.4/180 MiB", "1,104 of 1,163: 1,104 hot"):
        assert part in shown


def test_planned_stands_beside_measured_and_the_process_apart() -> None:
    rows = [plain(line) for line in memory_lines(BUSY, 44)]
    assert rows[0] == "planned      272 MiB  + 100 MiB overhead"
    assert rows[1] == "measured     272 MiB  as planned"
    assert rows[2] == "process      310 MiB"


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
    assert rows[2] == "process      362 MiB  50 MiB of it reclaimable"
    assert "model 92" in rows[3]


def test_while_a_prompt_is_read_the_last_one_is_not_told_for_it() -> None:
    asked = CockpitSnapshot(phase=Phase.DECODING, n_ctx=512, prompt=PromptReady(33))
    assert "0 of 33" in text(cache_lines(asked, 44))
    reading = replace(asked, phase=Phase.PREFILL, prefill=PromptProgress(43, 55, 24))
    shown = text(cache_lines(reading, 44))
    assert "0 of 33" not in shown
    assert "reading, 24 reused" in shown


def test_a_prefill_shows_how_far_it_is() -> None:
    reading = CockpitSnapshot(phase=Phase.PREFILL, prefill=PromptProgress(300, 1200, 0))
    assert "300/1,200" in text(throughput_lines(reading, 44))


def test_the_status_line_says_what_the_design_asks_for() -> None:
    shown = plain(status_line(BUSY, 100))
    assert shown.startswith(" SmolLM2-135M-Instruct · Q4_1 · lookup")
    assert shown.endswith("ctx 1.2k/8k 15% · 74 tok/s · 1.5x · accept 67% ")


def test_that_the_engine_has_stopped_is_never_cut_from_the_status_line() -> None:
    stopped = replace(BUSY, phase=Phase.STOPPED)
    said = plain(status_line(stopped, 60)).strip()
    assert said == "SmolLM2-135M-Instruct · Q4_1 · lookup · stopped", "nothing is in its context"


def test_the_name_of_a_hostile_file_is_only_text() -> None:
    named = CockpitSnapshot(model_name="evil\x1b[2J\nmodel")
    assert "\x1b" not in plain(status_line(named, 80))
    assert "\n" not in plain(status_line(named, 80))


def test_the_status_line_shows_a_prefill_where_there_is_no_panel() -> None:
    reading = CockpitSnapshot(phase=Phase.PREFILL, n_ctx=8192, prefill=PromptProgress(300, 1200, 0))
    assert "ctx 0/8k 0% · reading the prompt 25%" in plain(status_line(reading, 80))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_status_line_fills_one_line(width: int) -> None:
    assert width_of(status_line(BUSY, width)) == width


def test_the_status_line_tells_slots_only_where_there_are_several() -> None:
    report = CacheReport((TierUse("hot", 2, 1200, 27 * MIB, 180 * MIB, 8192),))
    assert "slots" not in plain(status_line(replace(BUSY, tiers=report), 120))
    several = replace(BUSY, n_slots=4)
    assert "slots" not in plain(status_line(several, 120))
    assert "15% · slots 2/4 · 74 tok/s" in plain(status_line(replace(several, tiers=report), 120))


def test_the_model_has_one_name_before_and_after_it_is_loaded() -> None:
    loading = CockpitSnapshot(phase=Phase.LOADING, model_name=BUSY.model_name, predictor="lookup")
    assert plain(status_line(loading, 100)).startswith(" SmolLM2-135M-Instruct · Q4_1 · lookup")
    other = replace(loading, model_name="model-q4_k_m")
    assert plain(status_line(other, 100)).startswith(" model · Q4_K_M · lookup")
    whole = replace(loading, model_name="Tiny-Instruct")
    assert plain(status_line(whole, 100)).startswith(" Tiny-Instruct · lookup")


def test_a_long_name_gives_way_to_the_predictor_behind_it() -> None:
    shown = plain(status_line(replace(BUSY, predictor="suffix"), 80))
    assert "… · Q4_1 · suffix" in shown
    assert shown.endswith("accept 67% ")


@pytest.mark.parametrize("width", [44, 70])
def test_memory_by_kind_is_told_as_a_whole(width: int) -> None:
    kinds = (("model", 921), ("KV", 1800), ("compute", 215), ("output", 2))
    buffers = tuple(BufferSize("CPU", kind, n * MIB // 10) for kind, n in kinds)
    assert plain(memory_lines(replace(BUSY, buffers=buffers), width)[3]).strip() == {
        44: "KV 180M · model 92.1M · compute 21.5M +205K",
        70: "KV 180 MiB · model 92.1 MiB · compute 21.5 MiB · output 205 KiB",
    }.get(width)


def test_the_number_of_threads_says_why() -> None:
    def shown(threads: ThreadsChanged | None, width: int = 44) -> str:
        return text(throughput_lines(replace(BUSY, threads=threads), width)).splitlines()[-1]

    assert shown(None) == f"threads      {NO_VALUE}"
    assert shown(ThreadsChanged(8, 8, "chosen")) == "threads      8  chosen"
    one = ThreadsChanged(1, 2, "others take cores")
    assert shown(one) == "threads      1  others take cores  prompts 2"
    assert shown(one, 36) == "threads      1  others take cores", "prompts are left out first"
