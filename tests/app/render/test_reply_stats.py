"""The statistics of one message, in words."""

from dataclasses import asdict, replace

import pytest

from app.render.reply_stats import reply_stats_text
from app.store.records import StoredMessage
from engine.events import GenerationStats
from tests.app.store.test_reply_stats import MEASURED


def message(stats: GenerationStats | None) -> StoredMessage:
    return StoredMessage(
        id=1,
        chat_id=1,
        parent_id=None,
        role="assistant",
        content="a",
        token_ids=None,
        vocabulary_id=None,
        model_name="SmolLM2",
        seed=7,
        finish_reason="end",
        stats=None if stats is None else asdict(stats),
        created_at=0.0,
        predictor=None if stats is None else stats.predictor,
        controller=None if stats is None else stats.controller,
    )


def test_every_figure_of_a_reply_is_there() -> None:
    assert (reply_stats_text(message(MEASURED)) or "").splitlines() == [
        "SmolLM2 · seed 7 · drafts by combined · rule auto",
        "9 tokens in 0.50 s, 18 tok/s, the first after 0.25 s",
        "prompt of 20 tokens, read in 0.20 s",
        "drafted 12, verified 9, examined 7, accepted 5, refuted 4; 4 rounds of 2.25 tokens",
        "1.8x of plain steps of 100.0 ms: 0.40 s ± 0.05 s saved",
        "accepted by source: draft 1 of 3 · lookup 4 of 6",
        "accepted of examined, by position: 1: 3 of 4 · 2: 2 of 3",
    ]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"saved_s": -0.1},
            "~0.80x of plain steps of 100.0 ms: 0.10 s ± 0.05 s lost",
        ),
        (
            {"saved_s": -0.03, "plain_spread": 0.35},
            "no clear gain or loss beside plain steps of 100.0 ms, which differ by 35%: "
            "within 0.05 s of noise",
        ),
    ],
    ids=["a loss", "noise"],
)
def test_a_loss_is_called_one_unless_it_may_be_noise(changed: dict[str, float], line: str) -> None:
    text = reply_stats_text(message(replace(MEASURED, **changed))) or ""  # type: ignore[arg-type]
    assert line in text.splitlines()


def test_a_gain_that_an_older_kvchat_kept_without_its_error_has_no_line() -> None:
    text = reply_stats_text(message(replace(MEASURED, saved_error_s=None))) or ""
    assert "plain steps" not in text
    assert "drafted 12" in text


def test_a_plain_reply_has_no_line_about_drafts() -> None:
    plain = GenerationStats(n_prompt=5, n_emitted=3, decode_s=0.1, predictor="off")
    lines = (reply_stats_text(message(plain)) or "").splitlines()
    assert lines[0] == "SmolLM2 · seed 7 · no drafts"
    assert len(lines) == 3


def test_a_reply_without_statistics_shows_none() -> None:
    assert reply_stats_text(message(None)) is None
