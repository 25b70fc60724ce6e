"""What the screen and `kvchat run --verbose` say of the last prompt."""

import pytest

from app.chat.snapshot import CockpitSnapshot
from app.render.lines import plain, width_of
from app.render.reuse import reuse_lines, reuse_text
from engine.events import PromptReady, ReadCause

EDITED = PromptReady(
    1163, n_hot=900, n_copied=100, n_cold=50, elapsed_s=0.41, restore_s=0.012,
    reused_prefill_s=7.6, computed_restore_s=0.003, n_common=950, cause=ReadCause.EDITED,
    changed="question 2", text_before="user\n", old_text="Why\x1b[2J", new_text="How",
)  # fmt: skip


def said(prompt: PromptReady | None, width: int = 96) -> list[str]:
    return [plain(line) for line in reuse_lines(CockpitSnapshot(prompt=prompt), width)]


def test_a_prompt_says_where_it_came_from_what_differed_and_what_each_part_took() -> None:
    assert said(EDITED) == [
        "prompt 1,163 tokens: 800 from the context, 100 from another slot, 50 from disk, "
        "213 computed",
        "why    question 2 changed",
        "at     token 951, after “user␊”",
        "was    “Why␛[2J”",
        "is     “How”",
        "reused restored in 12 ms; a prefill takes 7.6 s",
        "rest   computed in 410 ms; restoring the same number of tokens takes 3.0 ms",
    ]
    assert reuse_text(EDITED).splitlines() == said(EDITED, 200)


@pytest.mark.parametrize("width", [8, 20, 46, 200])
def test_no_line_is_wider_than_its_room(width: int) -> None:
    assert all(width_of(line) <= max(width, 15) for line in
               reuse_lines(CockpitSnapshot(prompt=EDITED), width))  # fmt: skip


def test_the_first_prompt_after_a_restored_state_is_no_first_prompt() -> None:
    hit = PromptReady(437, n_cold=419, cause=ReadCause.FIRST)
    assert "saved state" in reuse_text(hit)
    assert "first prompt" not in reuse_text(hit)
    assert "first prompt" in reuse_text(PromptReady(437, cause=ReadCause.FIRST))
