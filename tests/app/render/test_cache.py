from dataclasses import replace
from itertools import product

import pytest

from app.chat.snapshot import CockpitSnapshot
from app.format import NO_VALUE
from app.render.cache import cache_lines, reuse_line, tier_line, tiers_of
from app.render.charts import GraphSymbols
from app.render.lines import Line, plain, width_of
from engine.cache.report import CacheCounts, CacheNote, CacheReport, TierUse
from engine.events import CacheChanged, PromptReady
from engine.memory.units import MIB

HOT = TierUse("hot", 2, 1200, 27 * MIB, 180 * MIB, 8192)
WARM = TierUse("warm", 3, 4100, 92 * MIB, 1024 * MIB)
COLD = TierUse("cold", 41, 90_500, 1990 * MIB, 8192 * MIB)
COUNTS = CacheCounts(
    n_hits=14, n_misses=1, n_evictions=2, n_promotions=3, n_demotions=4, n_prefetches=5,
    n_hot_tokens=12_300, n_cold_tokens=900,
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
    shown = text(cache_lines(replace(TOLD, n_slots=1, tiers=old), 44, height=4))
    assert "1.2k/8.2k" in shown[0]
    assert "4.1k tok" in shown[1], "the other tiers are as they were told"
    assert "1/8.2k" in text(cache_lines(replace(TOLD, tiers=old), 44, height=4))[0]


def test_a_tall_panel_has_the_counts_in_full() -> None:
    shown = "\n".join(text(cache_lines(TOLD, 60)))
    for part in (
        "1,200 of 8,192 cells · 27 of 180 MiB · 2 states",
        "4,100 tokens · 92 MiB of 1 GiB · 3 states",
        "90,500 tokens · 1.94 of 8 GiB · 41 states",
        "1,104 of 1,163: 900 hot, 204 cold, restored in 12 ms",
        "14 restored · 1 missed · +12.3 s saved",
        "3 promoted, 4 demoted, 2 evicted",
        "5 prefetched",
        "12.3k hot, 900 cold, 4.0k computed",
    ):
        assert part in shown
    assert "older" not in shown


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


def test_no_time_is_claimed_before_any_was_saved() -> None:
    assert plain(reuse_line(CacheCounts(), 60)) == "reuse  0 restored · 0 missed"
    restored = CacheCounts(n_hits=1, n_cold_tokens=61)
    assert plain(reuse_line(restored, 60)) == f"reuse  1 restored · 0 missed · {NO_VALUE} saved"
