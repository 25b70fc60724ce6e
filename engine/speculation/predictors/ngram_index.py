"""Where the end of a line of tokens stood before, and what followed: an index of n-grams."""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from engine.backends.base import common_prefix
from engine.speculation.predictors.base import DraftToken

MAX_KEPT = 131_072
"""Tokens that an index looks back on at most; half of them at least."""


class Occurrence(NamedTuple):
    """An earlier stand of the line's end."""

    at: int
    """Where the continuation starts, counted from the first token of the line."""
    n_agreed: int
    """How many tokens before `at` equal those at the end of the line."""


class Places:
    """A line of tokens, and earlier places that agree with its end.

    For each order, a number of tokens, a table leads from the hash of so many last tokens to the
    newest place behind the same ones, and a chain from there to older places. Adding a token,
    taking it back and finding a place cost the same however long the line is. Two tables take
    turns, so tokens that are older than `n_kept` are forgotten without a pause.
    """

    def __init__(self, orders: Sequence[int], *, reach: int, n_kept: int = MAX_KEPT) -> None:
        self.orders = tuple(sorted(set(orders), reverse=True))
        """Numbers of tokens that have a table, longest first."""
        self._reach = reach
        self._n_turn = max(1, n_kept // 2)
        self.reset(())

    def __len__(self) -> int:
        return self._offset + len(self._line)

    def reset(self, history: Sequence[int]) -> None:
        """Start a line anew."""
        self._line: list[int] = []
        self._offset = 0
        self._turned_at = 0
        self._chains = {order: _Chain(order) for order in self.orders}
        self.append(history)

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end of the line."""
        chains, line = tuple(self._chains.values()), self._line
        for token in tokens:
            for chain in chains:
                chain.push(line, self._offset + len(line))
            line.append(token)
            if len(self) - self._turned_at >= self._n_turn:
                self._turn()

    def become(self, history: Sequence[int]) -> None:
        """Change the line to another; what both begin with is kept and not indexed again."""
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
        """The places that agree in `order` tokens or more, newest first, up to `reach` tokens."""
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
        """The tokens that follow places of the line, each as far behind as the draft is long.

        Where the line ends, the draft follows it.
        """
        line, n_line, shift = self._line, len(self._line), len(drafted) - self._offset
        indices = [at + shift for at, _ in places]
        return [line[i] if i < n_line else drafted[i - n_line] for i in indices]

    def _shared(self, history: Sequence[int]) -> int:
        n_line = len(self._line)
        if self._line == list(history[:n_line]):
            return n_line
        return common_prefix(self._line, history)

    def _turn(self) -> None:
        """Start a generation, and forget the one before the last."""
        n_gone = self._turned_at - self._offset
        del self._line[:n_gone]
        for chain in self._chains.values():
            chain.turn(n_gone)
        self._offset = self._turned_at
        self._turned_at = len(self)


class _Chain:
    """The places of one order: tables by hash, and from each place the one before it.

    Hashes may collide: whoever follows the chain counts the agreement.
    """

    def __init__(self, order: int) -> None:
        self._order = order
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self.older: list[int] = []
        """For each place that is kept the one before it, -1 for none."""

    def newest(self, end: Sequence[int]) -> int:
        """The newest place behind the last tokens of `end`, -1 for none."""
        return self._newest(hash(tuple(end[-self._order :])))

    def push(self, line: list[int], at: int) -> None:
        """Remember that the line's last tokens go on at `at`, its coming token."""
        if len(line) < self._order:
            self.older.append(-1)
            return
        key = hash(tuple(line[-self._order :]))
        self.older.append(self._newest(key))
        self._young[key] = at

    def pop(self, line: list[int]) -> None:
        """Take the last `push` back; `line` is what it was then."""
        before = self.older.pop()
        if len(line) < self._order:
            return
        key = hash(tuple(line[-self._order :]))
        if before < 0:
            self._young.pop(key, None)
        else:
            self._young[key] = before

    def turn(self, n_gone: int) -> None:
        """Let the young table be the old one, and drop the first `n_gone` places."""
        self._young, self._old = {}, self._young
        del self.older[:n_gone]

    def _newest(self, key: int) -> int:
        at = self._young.get(key)
        return self._old.get(key, -1) if at is None else at


MAX_PLACES = 32
DEPTH = itemgetter(1, 0)


def deepest_first(places: Places) -> list[Occurrence]:
    """The newest places that agree furthest, `MAX_PLACES` of them, newest first among equals."""
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
    places: Places, alive: list[Occurrence], min_confidence: float
) -> Iterator[DraftToken]:
    """Follow the likeliest token as long as the product of the probabilities stays large enough.

    `alive` comes deepest first; places where another token follows are left behind on the way.
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
        alive = [place for place, said in zip(alive, followers, strict=True) if said == token]


def most_likely(followers: Sequence[int], depths: Sequence[int]) -> tuple[int, float]:
    """The likeliest of the tokens that follow places, with its probability.

    `depths` is how far each place agrees, deepest first. Every depth `m` is asked, with the places
    that agree at least as far: a token that follows `c` of these `n` has probability
    `c / (n + 1 / m)`.
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
