"""A reply's text by its tokens, what is remembered of it, and the figures of its parts."""

from dataclasses import replace

import pytest

from app.chat.reply import joined_stats
from app.chat.spans import (
    N_REPLIES,
    SpanCache,
    TokenSpan,
    cut_spans,
    merged_spans,
    spans_of,
)
from engine.events import (
    CommittedToken,
    GenerationStats,
    PositionCounts,
    SourceCounts,
    TokenKind,
    TokensCommitted,
)

FOX = TokenSpan("fox", TokenKind.DRAFT, "lookup")


def test_a_reply_keeps_its_pieces_and_another_has_none() -> None:
    known = SpanCache()
    known.keep(1, [FOX], "fox")
    assert [known.get(1), known.get(2)] == [(FOX,), ()]


def test_pieces_that_do_not_spell_the_text_are_not_kept() -> None:
    known = SpanCache()
    known.keep(1, [FOX], "another")
    assert known.get(1) == ()


def test_only_the_newest_replies_are_kept() -> None:
    known = SpanCache()
    for key in range(N_REPLIES + 1):
        known.keep(key, [FOX], "fox")
    assert known.get(0) == ()
    assert known.get(N_REPLIES) == (FOX,)


DRAFTED = CommittedToken(1, TokenKind.DRAFT, "lookup")
BONUS = CommittedToken(2, TokenKind.BONUS, "lookup")


def test_every_token_of_a_round_has_its_own_text() -> None:
    event = TokensCommitted((DRAFTED, BONUS), "two words", (4, 5))
    assert list(spans_of(event)) == [
        TokenSpan("two ", TokenKind.DRAFT, "lookup"),
        TokenSpan("words", TokenKind.BONUS, "lookup"),
    ]


def test_an_end_token_and_a_held_back_token_have_no_text() -> None:
    assert list(spans_of(TokensCommitted((DRAFTED, BONUS), "two ", (0, 4)))) == [
        TokenSpan("two ", TokenKind.BONUS, "lookup")
    ]
    assert list(spans_of(TokensCommitted((DRAFTED, BONUS), "two ", (4,)))) == [
        TokenSpan("two ", TokenKind.DRAFT, "lookup")
    ]


def test_text_that_no_token_claims_is_never_lost() -> None:
    assert list(spans_of(TokensCommitted((), "rest"))) == [TokenSpan("rest")]
    spans = spans_of(TokensCommitted((DRAFTED, BONUS), "two words"))
    assert "".join(span.text for span in spans) == "two words"


def test_neighbours_of_one_source_become_one_piece() -> None:
    spans = [TokenSpan("a", TokenKind.DRAFT, "lookup"), TokenSpan("b", TokenKind.DRAFT, "lookup")]
    assert merged_spans([*spans, TokenSpan("c")]) == [
        TokenSpan("ab", TokenKind.DRAFT, "lookup"),
        TokenSpan("c"),
    ]


def test_pieces_follow_a_text_that_a_stop_string_shortened() -> None:
    spans = [TokenSpan("one ", TokenKind.PLAIN), TokenSpan("two", TokenKind.DRAFT, "suffix")]
    assert cut_spans(spans, "one t") == (TokenSpan("one ", TokenKind.PLAIN),
                                    TokenSpan("t", TokenKind.DRAFT, "suffix"))  # fmt: skip
    assert cut_spans(spans, "another text") is None
    assert cut_spans(spans, "one two three") is None


FIRST = GenerationStats(
    n_prompt=100, n_reused=0, n_rounds=4, n_drafted=6, n_verified=6, n_examined=5, n_accepted=4,
    n_emitted=8, by_source={"lookup": SourceCounts(6, 6, 5, 4, 3)},
    by_position=(PositionCounts(3, 2), PositionCounts(2, 2)), prefill_s=1.0, first_token_s=1.1,
    decode_s=2.0, decode_tps=4.0, plain_step_s=0.3, saved_s=0.4,
    saved_error_s=0.03, tokens_per_round=2.0, speedup=1.2,
)  # fmt: skip
SECOND = GenerationStats(
    n_prompt=108, n_reused=108, n_rounds=2, n_emitted=2, by_source={"draft": SourceCounts(1, 1)},
    by_position=(PositionCounts(1, 0),), prefill_s=0.1, first_token_s=0.2, decode_s=1.0,
    decode_tps=2.0, plain_step_s=0.5, saved_s=-0.1,
    saved_error_s=0.04, tokens_per_round=1.0, speedup=0.9,
)  # fmt: skip


def test_counts_and_times_are_sums_and_speeds_those_of_the_sums() -> None:
    whole = joined_stats(FIRST, SECOND)
    assert (whole.n_emitted, whole.n_rounds, whole.n_accepted) == (10, 6, 4)
    assert (whole.prefill_s, whole.decode_s) == (1.1, 3.0)
    assert whole.decode_tps == 10 / 3.0
    assert whole.tokens_per_round == 10 / 6
    assert whole.saved_s == pytest.approx(0.3)
    assert whole.saved_error_s == pytest.approx(0.05)
    assert whole.speedup == pytest.approx((1.2 * 2.0 + 0.9 * 1.0) / 3.0)


def test_the_wait_is_that_of_the_first_part_and_the_prompt_that_of_the_second() -> None:
    whole = joined_stats(FIRST, SECOND)
    assert whole.first_token_s == 1.1
    assert (whole.n_prompt, whole.n_reused, whole.plain_step_s) == (108, 108, 0.5)


def test_sources_and_positions_are_added_one_by_one() -> None:
    whole = joined_stats(FIRST, SECOND)
    assert whole.by_source == {
        "lookup": SourceCounts(6, 6, 5, 4, 3),
        "draft": SourceCounts(1, 1),
    }
    assert whole.by_position == (PositionCounts(4, 2), PositionCounts(2, 2))


def test_a_part_that_drafted_nothing_changes_nothing_of_what_was_saved() -> None:
    whole = joined_stats(FIRST, GenerationStats(n_rounds=1, n_emitted=1, decode_s=1.0))
    assert (whole.saved_s, whole.saved_error_s) == (0.4, 0.03)
    assert whole.speedup == pytest.approx(3.4 / 3.0)
    assert joined_stats(GenerationStats(), GenerationStats()).saved_s is None


def test_the_whole_saved_no_more_than_its_rounds_can_have() -> None:
    quick = replace(FIRST, decode_s=10.0, saved_s=9.0)
    slow = GenerationStats(n_rounds=96, n_emitted=96, decode_s=10.0)
    whole = joined_stats(quick, slow)
    assert whole.speedup == pytest.approx(104 / 100)
