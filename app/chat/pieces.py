"""A reply as pieces that remember where their tokens came from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from engine.events import TokenKind, TokensCommitted


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a reply whose tokens came in the same way."""

    text: str
    kind: TokenKind | None = None
    """None where it is not known, as in a reply that was read from the database."""
    source: str | None = None
    """Who drafted it."""


def pieces_of(event: TokensCommitted) -> Iterator[Piece]:
    """Give the text of one round by its tokens; text that was held back belongs to the last."""
    start = 0
    for token, length in zip_longest(event.tokens, event.lengths):
        if token is None or length is None:
            break
        if length:
            yield Piece(event.text[start : start + length], token.kind, token.source)
        start += length
    if start < len(event.text):
        last = event.tokens[-1] if event.tokens else None
        kind, source = (last.kind, last.source) if last is not None else (None, None)
        yield Piece(event.text[start:], kind, source)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Give the same text with neighbours of one kind and source as one piece."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is not None and (last.kind, last.source) == (piece.kind, piece.source):
            merged[-1] = Piece(last.text + piece.text, piece.kind, piece.source)
        else:
            merged.append(piece)
    return merged


def cut(pieces: Iterable[Piece], text: str) -> tuple[Piece, ...] | None:
    """Give the pieces up to the length of `text`, None where they do not spell it.

    A finished reply may be shorter than what was shown of it: a stop string is taken away.
    """
    kept: list[Piece] = []
    left = text
    for piece in pieces:
        part = piece.text[: len(left)]
        if not left.startswith(part):
            return None
        if part:
            kept.append(Piece(part, piece.kind, piece.source))
        left = left[len(part) :]
    return None if left else tuple(kept)
