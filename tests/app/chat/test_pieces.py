"""Text that remembers where its tokens came from."""

from app.chat.reply import Piece, cut, joined, pieces_of
from engine.events import CommittedToken, TokenKind, TokensCommitted

DRAFTED = CommittedToken(1, TokenKind.DRAFT, "lookup")
BONUS = CommittedToken(2, TokenKind.BONUS, "lookup")


def test_every_token_of_a_round_has_its_own_text() -> None:
    event = TokensCommitted((DRAFTED, BONUS), "two words", (4, 5))
    assert list(pieces_of(event)) == [
        Piece("two ", TokenKind.DRAFT, "lookup"),
        Piece("words", TokenKind.BONUS, "lookup"),
    ]


def test_an_end_token_and_a_held_back_token_have_no_text() -> None:
    assert list(pieces_of(TokensCommitted((DRAFTED, BONUS), "two ", (0, 4)))) == [
        Piece("two ", TokenKind.BONUS, "lookup")
    ]
    assert list(pieces_of(TokensCommitted((DRAFTED, BONUS), "two ", (4,)))) == [
        Piece("two ", TokenKind.DRAFT, "lookup")
    ]


def test_text_that_no_token_claims_is_never_lost() -> None:
    assert list(pieces_of(TokensCommitted((), "rest"))) == [Piece("rest")]
    pieces = pieces_of(TokensCommitted((DRAFTED, BONUS), "two words"))
    assert "".join(piece.text for piece in pieces) == "two words"


def test_neighbours_of_one_source_become_one_piece() -> None:
    pieces = [Piece("a", TokenKind.DRAFT, "lookup"), Piece("b", TokenKind.DRAFT, "lookup")]
    assert joined([*pieces, Piece("c")]) == [Piece("ab", TokenKind.DRAFT, "lookup"), Piece("c")]


def test_pieces_follow_a_text_that_a_stop_string_shortened() -> None:
    pieces = [Piece("one ", TokenKind.PLAIN), Piece("two", TokenKind.DRAFT, "suffix")]
    assert cut(pieces, "one t") == (Piece("one ", TokenKind.PLAIN),
                                    Piece("t", TokenKind.DRAFT, "suffix"))  # fmt: skip
    assert cut(pieces, "another text") is None
    assert cut(pieces, "one two three") is None
