"""What is known of the tokens of earlier replies."""

from app.chat.entries import Entry, Speaker
from app.chat.remembered import N_REPLIES, SpanCache
from app.chat.reply import TokenSpan
from engine.events import TokenKind

DRAFTED = TokenSpan("fox", TokenKind.DRAFT, "lookup")


def entry(key: int, content: str = "fox") -> Entry:
    return Entry(key, Speaker.MODEL, content)


def test_a_reply_keeps_its_pieces_and_another_has_none() -> None:
    known = SpanCache()
    known.keep(1, [DRAFTED], "fox")
    assert [e.spans for e in known.on([entry(1), entry(2)])] == [(DRAFTED,), ()]


def test_pieces_that_do_not_spell_the_text_are_not_kept() -> None:
    known = SpanCache()
    known.keep(1, [DRAFTED], "another")
    assert known.on([entry(1)])[0].spans == ()


def test_only_the_newest_replies_are_kept() -> None:
    known = SpanCache()
    for key in range(N_REPLIES + 1):
        known.keep(key, [DRAFTED], "fox")
    assert known.on([entry(0)])[0].spans == ()
    assert known.on([entry(N_REPLIES)])[0].spans == (DRAFTED,)
