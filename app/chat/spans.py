"""A reply's text by the origin of its tokens."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

from engine.events import TokenKind, TokensCommitted

N_REPLIES = 64
"""Replies whose spans a `SpanCache` holds."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A part of a reply whose tokens came in the same way."""

    text: str
    kind: TokenKind | None = None
    """Origin of the tokens; None if unknown, as in a reply that was read from the database."""
    source: str | None = None
    """Who drafted it."""


def spans_of(event: TokensCommitted) -> Iterator[TokenSpan]:
    """The text of one round by its tokens; text that was held back belongs to the last."""
    start = 0
    for token, length in zip_longest(event.tokens, event.lengths):
        if token is None or length is None:
            break
        if length:
            yield TokenSpan(event.text[start : start + length], token.kind, token.source)
        start += length
    if start < len(event.text):
        last = event.tokens[-1] if event.tokens else None
        kind, source = (last.kind, last.source) if last is not None else (None, None)
        yield TokenSpan(event.text[start:], kind, source)


def merged_spans(spans: Iterable[TokenSpan]) -> list[TokenSpan]:
    """The same text with neighbours of one kind and source as one span."""
    return [
        TokenSpan("".join(span.text for span in same), kind, source)
        for (kind, source), same in groupby(spans, key=lambda span: (span.kind, span.source))
    ]


def cut_spans(spans: Iterable[TokenSpan], text: str) -> tuple[TokenSpan, ...] | None:
    """The spans up to the length of `text`; None if their text differs.

    A finished reply may be shorter than what was shown of it: a stop string is removed.
    """
    cut: list[TokenSpan] = []
    end = 0
    for span in spans:
        part = span.text[: len(text) - end]
        if not text.startswith(part, end):
            return None
        if part:
            cut.append(replace(span, text=part))
        end += len(part)
    return tuple(cut) if end == len(text) else None


class SpanCache:
    """The origin of the tokens of the newest replies, by message id; never saved."""

    def __init__(self) -> None:
        self._spans: dict[int, tuple[TokenSpan, ...]] = {}

    def store(self, message_id: int, spans: Iterable[TokenSpan], text: str) -> None:
        """Store the spans of a reply, cut to its text, unless their text differs."""
        if known := cut_spans(merged_spans(spans), text):
            self._spans.pop(message_id, None)
            self._spans[message_id] = known
        if len(self._spans) > N_REPLIES:
            del self._spans[next(iter(self._spans))]

    def get(self, message_id: int) -> tuple[TokenSpan, ...]:
        return self._spans.get(message_id, ())

    def of_text(self, message_id: int, text: str) -> list[TokenSpan]:
        """Spans of the message if they make up the text, else one span without a source."""
        known = self.get(message_id)
        if "".join(span.text for span in known) == text:
            return list(known)
        return [TokenSpan(text)]
