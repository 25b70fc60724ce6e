"""Where the tokens of the last replies came from; it is kept while kvchat runs and never saved."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from app.chat.entries import Entry
from app.chat.reply import Piece, cut, joined

N_REPLIES = 64


class RememberedPieces:
    """Pieces by message id, of the newest `N_REPLIES` replies."""

    def __init__(self) -> None:
        self._pieces: OrderedDict[int, tuple[Piece, ...]] = OrderedDict()

    def keep(self, message_id: int, pieces: Iterable[Piece], text: str) -> None:
        """Remember the pieces of a reply, cut to its text; those that do not spell it are not."""
        known = cut(joined(pieces), text)
        if known:
            self._pieces[message_id] = known
            self._pieces.move_to_end(message_id)
        if len(self._pieces) > N_REPLIES:
            self._pieces.popitem(last=False)

    def of(self, message_id: int, text: str) -> tuple[Piece, ...]:
        """Give the pieces of a text, one of unknown origin where they are not known."""
        known = self._pieces.get(message_id, ())
        if "".join(piece.text for piece in known) == text:
            return known
        return (Piece(text, None, None),)

    def on(self, entries: list[Entry]) -> list[Entry]:
        """Give the entries with the pieces that are known of them."""
        return [
            replace(entry, pieces=self._pieces[entry.key]) if entry.key in self._pieces else entry
            for entry in entries
        ]
