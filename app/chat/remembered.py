"""Where the tokens of the last replies came from; it is kept while kvchat runs and never saved."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from app.chat.entries import Entry
from app.chat.reply import TokenSpan, cut, joined

N_REPLIES = 64


class SpanCache:
    """Pieces by message id, of the newest `N_REPLIES` replies."""

    def __init__(self) -> None:
        self._spans: OrderedDict[int, tuple[TokenSpan, ...]] = OrderedDict()

    def keep(self, message_id: int, spans: Iterable[TokenSpan], text: str) -> None:
        """Remember the spans of a reply, cut to its text; those that do not spell it are not."""
        known = cut(joined(spans), text)
        if known:
            self._spans[message_id] = known
            self._spans.move_to_end(message_id)
        if len(self._spans) > N_REPLIES:
            self._spans.popitem(last=False)

    def of(self, message_id: int, text: str) -> tuple[TokenSpan, ...]:
        """Give the spans of a text, one of unknown origin where they are not known."""
        known = self._spans.get(message_id, ())
        if "".join(span.text for span in known) == text:
            return known
        return (TokenSpan(text, None, None),)

    def on(self, entries: list[Entry]) -> list[Entry]:
        """Give the entries with the spans that are known of them."""
        return [
            replace(entry, spans=self._spans[entry.key]) if entry.key in self._spans else entry
            for entry in entries
        ]
