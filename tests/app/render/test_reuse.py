"""What the screen and `kvchat run --verbose` say of the last prompt."""

from dataclasses import replace

import pytest

from app.chat.snapshot import CockpitSnapshot
from app.render.lines import plain, width_of
from app.render.reuse import GOES_ON, NOTHING_ASKED, UNTOLD, prefix_line, reuse_lines, reuse_text
from engine.cache.report import CacheCounts, CacheReport, TierUse
from engine.events import PromptReady, ReadCause
from engine.memory.units import MIB

EDITED = PromptReady(
    1163, n_hot=900, n_copied=100, n_cold=50, elapsed_s=0.41, restore_s=0.012,
    reused_as_read_s=7.6, read_as_loaded_s=0.003, n_same=950, cause=ReadCause.EDITED,
    place="question 2", before="user\n", was="Why\x1b[2J", now="How",
)  # fmt: skip
COLD = TierUse("cold", 1, 1, MIB, 8192 * MIB)


def said(prompt: PromptReady | None, width: int = 90) -> list[str]:
    return [plain(line) for line in reuse_lines(CockpitSnapshot(prompt=prompt), width)]


def test_a_prompt_says_where_it_came_from_what_differed_and_what_each_part_took() -> None:
    assert said(EDITED) == [
        "prompt 1,163 tokens: 800 from the context, 100 from another slot, 50 from disk, 213 read",
        "why    question 2 was changed",
        "at     token 951, behind “user␊”",
        "was    “Why␛[2J”",
        "is     “How”",
        "reused restored in 12 ms; computing it takes 7.6 s",
        "read   computed in 410 ms; loading as much takes 3.0 ms",
    ]
    assert reuse_text(EDITED).splitlines() == said(EDITED, 200)


@pytest.mark.parametrize("width", [8, 20, 46, 200])
def test_no_line_is_wider_than_its_room(width: int) -> None:
    assert all(width_of(line) <= max(width, 15) for line in
               reuse_lines(CockpitSnapshot(prompt=EDITED), width))  # fmt: skip


def test_what_was_lost_is_named_beside_what_differs() -> None:
    lost = replace(EDITED, n_hot=0, n_copied=0, n_cold=0, lost=ReadCause.EVICTED)
    assert "why    950 of the same tokens lie nowhere any more: others had the room" in said(lost)
    assert plain(prefix_line(lost, 80)).endswith("question 2 changed; evicted")


def test_a_prompt_that_only_goes_on_has_no_reason() -> None:
    assert f"why    {GOES_ON}" in said(PromptReady(20, n_hot=10, n_same=10))
    assert f"why    {UNTOLD}" in said(PromptReady(20, n_hot=10))
    assert said(None) == [f"prompt {NOTHING_ASKED}"]
    assert plain(prefix_line(PromptReady(20, cause=ReadCause.FIRST), 80)) == (
        "prefix reused 0 of 20 tokens"
    )


def test_bytes_on_disk_are_told_where_a_disk_is_used() -> None:
    counts = CacheCounts(n_written_bytes=412 * MIB)
    snapshot = CockpitSnapshot(prompt=EDITED, tiers=CacheReport((COLD,), counts))
    assert plain(reuse_lines(snapshot, 90)[-1]) == (
        "disk   412 MiB written since the model was loaded"
    )
    off = replace(COLD, budget_bytes=0)
    assert not any(
        "written" in plain(line)
        for line in reuse_lines(replace(snapshot, tiers=CacheReport((off,), counts)), 90)
    )
