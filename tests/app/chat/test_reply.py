"""A reply's text by its tokens, what is remembered of it, and the figures of its parts."""

from app.chat.spans import (
    TokenSpan,
    cut_spans,
    spans_of,
)
from engine.events import (
    CommittedToken,
    TokenKind,
    TokensCommitted,
)

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


def test_pieces_follow_a_text_that_a_stop_string_shortened() -> None:
    spans = [TokenSpan("one ", TokenKind.PLAIN), TokenSpan("two", TokenKind.DRAFT, "suffix")]
    assert cut_spans(spans, "one t") == (TokenSpan("one ", TokenKind.PLAIN),
                                    TokenSpan("t", TokenKind.DRAFT, "suffix"))  # fmt: skip
    assert cut_spans(spans, "another text") is None
    assert cut_spans(spans, "one two three") is None
