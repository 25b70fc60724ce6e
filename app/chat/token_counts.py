"""Tokens of texts that are written, by the loaded model's own vocabulary; no Textual here."""

from collections.abc import Callable
from itertools import count

N_KNOWN = 256
"""Texts whose tokens are kept in mind; pastes and files are asked about with every keystroke."""


class TokenCounts:
    """Asks the engine how many tokens texts have, one text at a time, and keeps what it said.

    Where the engine is busy with a long text, what is typed meanwhile costs no further question:
    the next one is about the text as it is then.
    """

    def __init__(self, ask: Callable[[int, str], None]) -> None:
        """Counts without answers yet.

        Args:
            ask: Takes a key and a text; `take` gets the key and the count later.
        """
        self._ask = ask
        self._keys = count(1)
        self._known: dict[str, int] = {}
        self._asked: tuple[int, str] | None = None

    def of(self, text: str) -> int | None:
        """The tokens of a text; None until the engine has said."""
        if not text:
            return 0
        known = self._known.get(text)
        if known is None and self._asked is None:
            self._asked = (next(self._keys), text)
            self._ask(*self._asked)
        return known

    def take(self, key: int, n_tokens: int) -> None:
        """Keep an answer; one that an earlier engine gave is not heard."""
        if self._asked is None or self._asked[0] != key:
            return
        self._known[self._asked[1]] = n_tokens
        self._asked = None
        while len(self._known) > N_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Know nothing any more: another model counts in tokens of its own."""
        self._known, self._asked = {}, None
