"""N-gram index: earlier occurrences of the last tokens of a text, and the tokens after them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.backends.base import common_prefix

MAX_INDEXED = 131_072
"""Maximum tokens in an index; beyond it the older half is dropped."""


class Occurrence(NamedTuple):
    """An earlier occurrence of the last tokens."""

    at: int
    """Index of the token that follows it."""
    n_agreed: int
    """Number of tokens before `at` that equal the last tokens."""


class _NgramTable:
    """Occurrences of n-grams of one length: the newest by hash, and links to older ones.

    Hashes may collide, so callers compare the tokens.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self._newest: dict[int, int] = {}
        self.older: list[int] = []
        """For each index the previous occurrence of the n-gram before it; -1 if none."""

    def newest(self, tokens: list[int]) -> int:
        """Index after the newest occurrence of the last n-gram; -1 if none."""
        return self._newest.get(self._key(tokens), -1)

    def push(self, tokens: list[int]) -> None:
        """Add the last n-gram of the tokens."""
        if len(tokens) < self.order:
            self.older.append(-1)
            return
        key = self._key(tokens)
        self.older.append(self._newest.get(key, -1))
        self._newest[key] = len(tokens)

    def pop(self, tokens: list[int]) -> None:
        """Undo the last `push`, given its tokens."""
        before = self.older.pop()
        if before >= 0:
            self._newest[self._key(tokens)] = before
        elif len(tokens) >= self.order:
            del self._newest[self._key(tokens)]

    def _key(self, tokens: list[int]) -> int:
        return hash(tuple(tokens[-self.order :]))


class NgramIndex:
    """A token sequence, and the earlier occurrences of its end.

    Adding a token, removing it and finding an occurrence take constant time.
    """

    def __init__(self, orders: Sequence[int], *, reach: int, n_indexed: int = MAX_INDEXED) -> None:
        self.orders = tuple(sorted(set(orders), reverse=True))
        """N-gram lengths with a table, longest first."""
        self._reach, self._n_indexed = reach, n_indexed
        self.reset(())

    def __len__(self) -> int:
        return len(self._tokens)

    def reset(self, history: Sequence[int]) -> None:
        """Replace the sequence."""
        self._tokens: list[int] = []
        self._tables = {order: _NgramTable(order) for order in self.orders}
        self.append(history[-self._n_indexed :])

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens; beyond the maximum, index the newer half again."""
        known, tables = self._tokens, tuple(self._tables.values())
        if len(known) + len(tokens) > self._n_indexed:
            self.reset([*known, *tokens][-self._n_indexed // 2 :])
            return
        for token in tokens:
            for table in tables:
                table.push(known)
            known.append(token)

    def replace(self, history: Sequence[int]) -> None:
        """Change to another sequence; a long common prefix is not indexed again."""
        n_known = len(self._tokens)
        is_longer = self._tokens == list(history[:n_known])
        n_shared = n_known if is_longer else common_prefix(self._tokens, history)
        if n_shared < len(self._tokens) // 2:
            self.reset(history)
            return
        while len(self._tokens) > n_shared:
            self._tokens.pop()
            for table in self._tables.values():
                table.pop(self._tokens)
        self.append(history[n_shared:])

    def of_order(self, order: int) -> Iterator[Occurrence]:
        """Occurrences of the last `order` tokens, newest first; matches count up to `reach`."""
        tokens, table = self._tokens, self._tables[order]
        at = table.newest(tokens) if len(tokens) >= order else -1
        while at >= order:
            n_agreed, limit = 0, min(self._reach, at)
            while n_agreed < limit and tokens[at - 1 - n_agreed] == tokens[-1 - n_agreed]:
                n_agreed += 1
            if n_agreed >= order:
                yield Occurrence(at, n_agreed)
            at = table.older[at]

    def following(self, occurrences: Sequence[Occurrence], drafted: Sequence[int]) -> list[int]:
        """The token `len(drafted)` places after each occurrence in the text with `drafted`."""
        tokens, n_tokens, n_drafted = self._tokens, len(self._tokens), len(drafted)
        indices = [occurrence.at + n_drafted for occurrence in occurrences]
        return [tokens[i] if i < n_tokens else drafted[i - n_tokens] for i in indices]
