"""A reply's text by its tokens, what is remembered of it, and the figures of its parts."""

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
