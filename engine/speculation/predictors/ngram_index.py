"""N-gram index: earlier occurrences of the last tokens of a text, and the tokens after them."""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from engine.backends.base import common_prefix
from engine.speculation.predictors.base import DraftToken

MAX_INDEXED = 131_072
"""Maximum tokens in an index; at least the last half of them is retained."""


class Occurrence(NamedTuple):
    """An earlier occurrence of the last tokens."""

    at: int
    """Index of the token that follows it."""
    n_agreed: int
    """Number of tokens before `at` that equal the last tokens."""


class NgramIndex:
    """A token sequence, and the earlier occurrences of its end.

    For each order (n-gram length), a table maps the hash of an n-gram to the index after its newest
    occurrence, and a chain links to older ones. Adding a token, removing it and finding an
    occurrence take constant time. Two tables alternate, so tokens beyond `n_indexed` are dropped
    without a pause.
    """

    def __init__(self, orders: Sequence[int], *, reach: int, n_indexed: int = MAX_INDEXED) -> None:
        self.orders = tuple(sorted(set(orders), reverse=True))
        """N-gram lengths with a table, longest first."""
        self._reach = reach
        self._n_turn = max(1, n_indexed // 2)
        self.reset(())

    def __len__(self) -> int:
        return self._offset + len(self._line)

    def reset(self, history: Sequence[int]) -> None:
        """Replace the sequence."""
        self._line: list[int] = []
        self._offset = 0
        self._turned_at = 0
        self._chains = {order: _Chain(order) for order in self.orders}
        self.append(history)

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        chains, line = tuple(self._chains.values()), self._line
        for token in tokens:
            for chain in chains:
                chain.push(line, self._offset + len(line))
            line.append(token)
            if len(self) - self._turned_at >= self._n_turn:
                self._turn()

    def replace(self, history: Sequence[int]) -> None:
        """Change to another sequence; a common prefix is not indexed again."""
        shared = 0 if self._offset else self._shared(history)
        if shared < max(self._turned_at, len(self._line) // 2):
            self.reset(history)
            return
        while len(self._line) > shared:
            self._line.pop()
            for chain in self._chains.values():
                chain.pop(self._line)
        self.append(history[shared:])

    def of_order(self, order: int) -> Iterator[Occurrence]:
        """Occurrences of the last `order` tokens, newest first; matches count up to `reach`."""
        line, offset = self._line, self._offset
        if len(line) < order:
            return
        chain, reach = self._chains[order], min(self._reach, len(line))
        at = chain.newest(line)
        while at >= offset + order:
            index, n_agreed = at - offset, 0
            limit = min(reach, index)
            while n_agreed < limit and line[index - 1 - n_agreed] == line[-1 - n_agreed]:
                n_agreed += 1
            if n_agreed >= order:
                yield Occurrence(at, n_agreed)
            at = chain.older[index]

    def tokens(self, places: Sequence[Occurrence], drafted: Sequence[int]) -> list[int]:
        """The token `len(drafted)` places after each occurrence in the text with `drafted`."""
        line, n_line, shift = self._line, len(self._line), len(drafted) - self._offset
        indices = [at + shift for at, _ in places]
        return [line[i] if i < n_line else drafted[i - n_line] for i in indices]

    def _shared(self, history: Sequence[int]) -> int:
        n_line = len(self._line)
        if self._line == list(history[:n_line]):
            return n_line
        return common_prefix(self._line, history)

    def _turn(self) -> None:
        """Start a new table and drop the tokens of the older one."""
        n_gone = self._turned_at - self._offset
        del self._line[:n_gone]
        for chain in self._chains.values():
            chain.turn(n_gone)
        self._offset = self._turned_at
        self._turned_at = len(self)


class _Chain:
    """Occurrences of one order: tables by hash, and links to older occurrences.

    Hashes may collide, so callers compare the tokens.
    """

    def __init__(self, order: int) -> None:
        self._order = order
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self.older: list[int] = []
        """For each index the previous occurrence; -1 if none."""

    def newest(self, end: Sequence[int]) -> int:
        """Index after the newest occurrence of the last tokens of `end`; -1 if none."""
        return self._newest(hash(tuple(end[-self._order :])))

    def push(self, line: list[int], at: int) -> None:
        """Add the n-gram at the end of `line`, followed by index `at`."""
        if len(line) < self._order:
            self.older.append(-1)
            return
        key = hash(tuple(line[-self._order :]))
        self.older.append(self._newest(key))
        self._young[key] = at

    def pop(self, line: list[int]) -> None:
        """Undo the last `push`, given its `line`."""
        before = self.older.pop()
        if len(line) < self._order:
            return
        key = hash(tuple(line[-self._order :]))
        if before < 0:
            self._young.pop(key, None)
        else:
            self._young[key] = before

    def turn(self, n_gone: int) -> None:
        """Make the young table the old one, and drop the first `n_gone` links."""
        self._young, self._old = {}, self._young
        del self.older[:n_gone]

    def _newest(self, key: int) -> int:
        at = self._young.get(key)
        return self._old.get(key, -1) if at is None else at


MAX_PLACES = 32
DEPTH = itemgetter(1, 0)


def deepest_first(places: NgramIndex) -> list[Occurrence]:
    """Up to `MAX_PLACES` occurrences by match length, newest first among equals."""
    found: dict[int, Occurrence] = {}
    for order in places.orders:
        if len(found) == MAX_PLACES:
            break
        for place in islice(places.of_order(order), MAX_PLACES):
            found[place.at] = place
            if len(found) == MAX_PLACES:
                break
    return sorted(found.values(), key=DEPTH, reverse=True)


def likely_continuation(
    places: NgramIndex, alive: list[Occurrence], min_confidence: float
) -> Iterator[DraftToken]:
    """Yield the likeliest tokens while the product of their probabilities is large enough.

    `alive` is sorted deepest first; occurrences followed by another token are dropped.
    """
    drafted: list[int] = []
    expected = 1.0
    while alive:
        followers, n_drafted = places.tokens(alive, drafted), len(drafted)
        depths = [n_agreed + n_drafted for _, n_agreed in alive]
        token, confidence = most_likely(followers, depths)
        expected *= confidence
        if token < 0 or expected < min_confidence:  # an image
            return
        yield DraftToken(token, confidence)
        drafted.append(token)
        alive = [place for place, each in zip(alive, followers, strict=True) if each == token]


def most_likely(followers: Sequence[int], depths: Sequence[int]) -> tuple[int, float]:
    """The likeliest token that follows the occurrences, and its probability.

    `depths` are the match lengths, deepest first. For each depth `m`, a token that follows `c` of
    the `n` occurrences with at least that depth has probability `c / (n + 1 / m)`.
    """
    counts: dict[int, int] = {}
    leader, best, best_probability = followers[0], followers[0], 0.0
    for index, (token, depth) in enumerate(zip(followers, depths, strict=True)):
        counts[token] = counts.get(token, 0) + 1
        if counts[token] > counts[leader]:
            leader = token
        if index + 1 < len(depths) and depths[index + 1] == depth:
            continue
        probability = counts[leader] / (index + 1 + 1.0 / depth)
        if probability > best_probability:
            best, best_probability = leader, probability
    return best, best_probability
