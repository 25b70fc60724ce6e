from dataclasses import replace
from itertools import product

import pytest

from app.chat.snapshot import CockpitSnapshot
from app.format import NO_VALUE
from app.render.cache import cache_lines, note_line, reuse_line, tier_line, tiers_of
from app.render.charts import GraphSymbols
from app.render.lines import Line, plain, width_of
from app.render.reuse import prefix_line
from engine.cache.report import CacheCounts, CacheNote, CacheReport, TierName, TierUse
from engine.events import CacheChanged, PromptReady
from engine.memory.units import MIB

HOT = TierUse("hot", 2, 1200, 27 * MIB, 180 * MIB, 8192)
WARM = TierUse("warm", 3, 4100, 92 * MIB, 1024 * MIB)
COLD = TierUse("cold", 41, 90_500, 1990 * MIB, 8192 * MIB)
COUNTS = CacheCounts(
    n_hits=14, n_misses=1, n_evictions=2, n_promotions=3, n_demotions=4, n_prefetches=5,
    n_prefetches_used=3, n_prefetches_wasted=1, n_hot_tokens=12_300, n_cold_tokens=900,
    n_computed_tokens=4_000, saved_s=12.3,
)  # fmt: skip
TOLD = CockpitSnapshot(
    n_ctx=8192,
    n_slots=2,
    cache=CacheChanged(1200, 8192, 180 * MIB),
    prompt=PromptReady(1163, n_hot=900, n_cold=204, restore_s=0.012),
    tiers=CacheReport((HOT, WARM, COLD), COUNTS),
    cache_log=(CacheNote(0.0, "older"), CacheNote(3600.0, "wrote 2 snapshots of 31 MiB")),
)
EMPTY = CockpitSnapshot()
OFF = replace(
    TOLD,
    tiers=CacheReport((HOT, TierUse("warm", 0, 0, 0, 0), TierUse("cold", 0, 0, 0, 0))),
    cache_log=(),
)


def text(lines: list[Line]) -> list[str]:
    return [plain(line) for line in lines]


@pytest.mark.parametrize("snapshot", [TOLD, EMPTY, OFF])
@pytest.mark.parametrize("symbols", ["block", "braille", "ascii"])
def test_the_panel_keeps_to_its_room(snapshot: CockpitSnapshot, symbols: GraphSymbols) -> None:
    for width, height in product((1, 20, 44, 76), (0, 4, 6, 9, 12, 13, None)):
        lines = cache_lines(snapshot, width, symbols, height=height)
        assert height is None or len(lines) <= height
        assert all(width_of(line) <= width for line in lines), (width, height)


def test_four_lines_show_three_tiers_and_the_prefix() -> None:
    assert text(cache_lines(TOLD, 44, height=4)) == [
        "hot    █▌░░░░░░░░  1.2k/8.2k tok    27M/180M",
        "warm   ▉░░░░░░░░░       4.1k tok      92M/1G",
        "cold   ██▍░░░░░░░      90.5k tok    1.94G/8G",
        "prefix 1,104/1,163: 900 hot, 204 cold, 12 ms",
    ]


def test_the_context_of_one_sequence_is_as_full_as_its_last_round_made_it() -> None:
    old = CacheReport((replace(HOT, n_entries=1, n_tokens=1), WARM, COLD))
    shown = text(cache_lines(replace(TOLD, n_slots=1, tiers=old), 60))
    assert "1,200 of 8,192 cells · 26.4 of 180 MiB · 1 sequence" in shown[1]
    assert "1 of 8,192 cells" in text(cache_lines(replace(TOLD, tiers=old), 60))[1]


def test_a_tall_panel_has_the_counts_in_full() -> None:
    shown = "\n".join(text(cache_lines(TOLD, 60)))
    for part in (
        "1,200 of 8,192 cells · 27 of 180 MiB · 2 sequences",
        "4,100 tokens · 92 MiB of 1 GiB · 3 snapshots",
        "90,500 tokens · 1.94 of 8 GiB · 41 snapshots",
        "1,104 of 1,163: 900 hot, 204 cold, restored in 12 ms",
        "14 restored · 1 missed · +12.3 s saved",
        "3 promoted, 4 demoted, 2 evicted",
        "5 prefetched: 3 used, 1 wasted",
        "12.3k hot, 900 cold, 4.0k computed",
    ):
        assert part in shown
    assert "older" not in shown


def test_only_a_problem_of_the_log_stands_in_the_panel() -> None:
    told = "wrote 2 snapshots of 31 MiB"
    assert told not in "\n".join(text(cache_lines(TOLD, 60)))
    problem = replace(TOLD.cache_log[-1], is_problem=True)
    assert told in "\n".join(text(cache_lines(replace(TOLD, cache_log=(problem,)), 60)))


def test_before_the_first_report_only_the_context_is_known() -> None:
    shown = text(cache_lines(replace(TOLD, tiers=None, cache_log=()), 60))
    assert "1,200 of 8,192 cells" in shown[1]
    assert shown[2] == f"warm   {NO_VALUE}"
    assert text(cache_lines(EMPTY, 44, height=4)) == [
        f"{name:<7}{NO_VALUE}" for name in ("hot", "warm", "cold", "prefix")
    ]


def test_a_tier_without_a_budget_is_off() -> None:
    assert [plain(tier_line(tier, 44, "block")) for tier in tiers_of(OFF)][1:] == [
        "warm   off",
        "cold   off",
    ]


def test_a_tier_has_its_name_and_its_own_colour() -> None:
    for tier in (HOT, WARM, COLD):
        styles = {run.style for run in tier_line(tier, 44, "block")}
        assert f"tier-{tier.name}" in styles
        assert "bar-free" in styles


@pytest.mark.parametrize("name", ["warm", "cold"])
def test_a_tier_over_its_budget_is_drawn_full(name: TierName) -> None:
    full = plain(tier_line(TierUse(name, 1, 10, 300 * MIB, 200 * MIB), 60, "block"))
    assert "░" not in full
    assert "150%" in full


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (70, "1,104 of 1,163: 900 hot, 204 cold, restored in 12 ms"),
        (48, "1,104 of 1,163: 900 hot, 204 cold, 12 ms"),
        (44, "1,104/1,163: 900 hot, 204 cold, 12 ms"),
        (42, "1,104 of 1,163: 900 hot, 204 cold"),
        (24, "1,104 of 1,163"),
    ],
)
def test_the_prefix_is_said_in_the_longest_wording_that_fits(width: int, said: str) -> None:
    assert plain(prefix_line(TOLD.prompt, width)) == f"prefix {said}"


def test_restoring_has_no_time_where_nothing_was_restored() -> None:
    hot = PromptReady(1163, n_hot=900)
    assert plain(prefix_line(hot, 60)) == "prefix 900 of 1,163: 900 hot"


def test_why_less_was_reused_stands_beside_the_prefix() -> None:
    told = PromptReady(1163, n_hot=900, note="the window has moved on\x1b[2J")
    snapshot = replace(TOLD, prompt=told)
    shown = "\n".join(text(cache_lines(snapshot, 60)))
    assert "the window has moved on" in shown
    assert "\x1b" not in shown


def test_no_time_is_claimed_before_any_was_saved() -> None:
    assert plain(reuse_line(CacheCounts(), 60)) == "reuse  0 restored · 0 missed"
    restored = CacheCounts(n_hits=1, n_cold_tokens=61)
    assert plain(reuse_line(restored, 60)) == f"reuse  1 restored · 0 missed · {NO_VALUE} saved"


def test_a_loss_of_time_is_named_and_coloured() -> None:
    line = reuse_line(replace(COUNTS, saved_s=-0.4), 60)
    assert plain(line).endswith(" · 0.40 s lost")
    assert [run.style for run in line if "0.40" in run.text] == ["bad"]


def test_a_problem_in_the_log_has_a_sign_and_a_colour() -> None:
    line = note_line(CacheNote(0.0, "damaged:\n\x1b[31mred", is_problem=True), 60)
    assert " ! damaged: " in plain(line)
    assert "\x1b" not in plain(line)
    assert "warn" in {run.style for run in line}
