"""The statistics of one message, in words."""

from dataclasses import asdict, replace

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
        "1.8x of plain steps, 100.0 ms each: 0.40 s saved",
        "accepted by source: draft 33% of 3 · lookup 67% of 6",
        "accepted by place: 1 75% of 4 · 2 67% of 3",
    ]


def test_a_loss_is_called_one() -> None:
    text = reply_stats_text(message(replace(MEASURED, speedup=0.8, saved_s=-0.1))) or ""
    assert "0.80x of plain steps, 100.0 ms each: 0.10 s lost" in text


def test_a_plain_reply_has_no_line_about_drafts() -> None:
    plain = GenerationStats(n_prompt=5, n_emitted=3, decode_s=0.1, predictor="off")
    lines = (reply_stats_text(message(plain)) or "").splitlines()
    assert lines[0] == "SmolLM2 · seed 7 · no drafts"
    assert len(lines) == 3


def test_a_reply_without_statistics_shows_none() -> None:
    assert reply_stats_text(message(None)) is None
