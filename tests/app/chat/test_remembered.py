"""What is known of the tokens of earlier replies."""

from app.chat.entries import Entry, Speaker
from app.chat.remembered import N_REPLIES, RememberedPieces
from app.chat.reply import Piece
from engine.events import TokenKind

DRAFTED = Piece("fox", TokenKind.DRAFT, "lookup")


def entry(key: int, content: str = "fox") -> Entry:
    return Entry(key, Speaker.MODEL, content)


def test_a_reply_keeps_its_pieces_and_another_has_none() -> None:
    known = RememberedPieces()
    known.keep(1, [DRAFTED], "fox")
    assert [e.pieces for e in known.on([entry(1), entry(2)])] == [(DRAFTED,), ()]


def test_pieces_that_do_not_spell_the_text_are_not_kept() -> None:
    known = RememberedPieces()
    known.keep(1, [DRAFTED], "another")
    assert known.on([entry(1)])[0].pieces == ()


def test_only_the_newest_replies_are_kept() -> None:
    known = RememberedPieces()
    for key in range(N_REPLIES + 1):
        known.keep(key, [DRAFTED], "fox")
    assert known.on([entry(0)])[0].pieces == ()
    assert known.on([entry(N_REPLIES)])[0].pieces == (DRAFTED,)
