"""Slots: sequences inside the context, each with the line of one chat or branch."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Backend, Sequence, common_prefix
from engine.configuration import Adapter
from engine.errors import ContextFullError

MIN_SHIFTED = 16
"""Shortest stretch behind a gap that is worth moving."""


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence, and whose line it holds."""

    sequence: Sequence
    owner: str = ""
    turn: int = 0
    """When it was used last, in replies."""
    is_pure: bool = True
    """Whether what it holds follows from its tokens alone; not so behind a shift."""
    is_busy: bool = False
    """Whether a reply is being made in it."""
    adapters: tuple[Adapter, ...] | None = None
    """What its cells were computed with; None is what the model was loaded with."""
    n_wanted: int = 0
    """Tokens that this reply counts on, whether it holds them yet or not."""
    n_looked_at: int = 0
    """Tokens that it held when it was last looked at for what to keep."""

    @property
    def n_tokens(self) -> int:
        """Tokens that it holds."""
        return len(self.sequence.tokens)


class HotTier:
    """Chooses the sequence that a line of tokens is computed in."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._slots = [Slot(backend.open())]
        self._turn = 0
        self._shared: dict[frozenset[int], int] = {}
        """Leading tokens of two slots, by their places, that lie in the same cells."""

    @property
    def slots(self) -> Tokens[Slot]:
        """The sequences that were opened so far."""
        return self._slots

    def best(
        self, tokens: Tokens[int], adapters: tuple[Adapter, ...] | None = None
    ) -> tuple[Slot, int]:
        """The sequence that holds most of the line's start, and how many tokens of it.

        What was computed with other adapters does not count.
        """
        return max(
            (
                (slot, _n_usable(slot, tokens) if slot.adapters == adapters else 0)
                for slot in self._slots
            ),
            key=lambda found: (found[1], found[0].turn),
        )

    def n_longest(self, tokens: Tokens[int], adapters: tuple[Adapter, ...] | None) -> int:
        """Tokens of the line's start that some sequence holds, if it can be cut there or not."""
        alike = (each for each in self._slots if each.is_pure and each.adapters == adapters)
        return max((common_prefix(each.sequence.tokens, tokens) for each in alike), default=0)

    def shiftable(
        self, tokens: Tokens[int], owner: str, adapters: tuple[Adapter, ...] | None = None
    ) -> tuple[Slot, int, int] | None:
        """Find a line of this owner that becomes `tokens` when a stretch in the middle is dropped.

        A line that lost its middle before goes on without a further gap too.

        Returns:
            The slot, how many tokens stay in front, and how many go; None where no line is alike.
        """
        if not self._backend.can_shift:
            return None
        for slot in self._slots:
            is_own = bool(owner) and slot.owner == owner and slot.adapters == adapters
            if not is_own or slot.is_busy:
                continue
            if gap := _gap(slot.sequence.tokens, tokens):
                return slot, *gap
            if not slot.is_pure:
                return slot, common_prefix(slot.sequence.tokens, tokens), 0
        return None

    def slot_for(self, best: Slot, n_common: int, owner: str) -> Slot:
        """The slot for a line whose first `n_common` tokens `best` holds.

        That is `best` itself where nobody else's line would be cut, otherwise `victim`.
        """
        is_own = not best.owner or best.owner == owner or best.n_tokens == n_common
        return best if is_own and not best.is_busy else self.victim()

    def victim(self) -> Slot:
        """The slot whose line is given up for another: an unopened one, else the oldest.

        Raises:
            ContextFullError: a reply is being made in each.
        """
        if len(self._slots) < self._backend.n_sequences:
            self._slots.append(Slot(self._backend.open()))
            return self._slots[-1]
        idle = [slot for slot in self._slots if not slot.is_busy]
        if not idle:
            raise ContextFullError(
                f"a reply is being made in each of the {len(self._slots)} sequences of the "
                "context: wait for one, or load the model with more slots"
            )
        return min(idle, key=lambda slot: (slot.n_tokens > 0, slot.turn))

    def use(self, slot: Slot, owner: str) -> None:
        """Note that a reply is made in this slot."""
        self._turn += 1
        slot.owner, slot.turn = owner, self._turn

    def make_room(self, slot: Slot, n_tokens: int) -> int:
        """Empty the oldest other sequences until a shared pool has room for a line's growth.

        Returns:
            How many sequences were emptied.
        """
        if len(self._slots) < 2 or not self._backend.shares_cells:
            return 0
        n_emptied = 0
        others = (one for one in self._slots if one is not slot and not one.is_busy)
        for other in sorted(others, key=lambda one: one.turn):
            if self.n_held + n_tokens <= self._backend.n_ctx:
                break
            n_emptied += other.n_tokens > 0
            empty(other)
            self.forget_shared(other)
        return n_emptied

    def has_room(self, slot: Slot | None, n_tokens: int) -> bool:
        """Whether a line can have `n_tokens` cells more beside the replies that are being made.

        True where nobody shares them: how much one line may hold is its own affair.

        Args:
            slot: Where the line is; None for one that has no slot yet, which needs one too.
            n_tokens: That it would hold more than now.
        """
        busy = [one for one in self._slots if one.is_busy and one is not slot]
        if slot is None and len(busy) == self._backend.n_sequences:
            return False
        n_taken = sum(max(one.n_tokens, one.n_wanted) for one in busy)
        if not n_taken or not self._backend.shares_cells:
            return True
        counted = busy if slot is None else [*busy, slot]
        n_wanted = sum(max(one.n_wanted - one.n_tokens, 0) for one in busy)
        return self._n_cells(counted) + n_wanted + n_tokens <= self._backend.n_ctx

    @property
    def n_held(self) -> int:
        """Cells that all sequences hold; those that several share count once."""
        return self._n_cells(self._slots)

    def forget_shared(self, slot: Slot, length: int = 0) -> None:
        """Take that a slot shares no cell behind its first `length` tokens any more."""
        place = self._slots.index(slot)
        for pair, n_shared in tuple(self._shared.items()):
            if place in pair:
                self._shared[pair] = min(n_shared, length)

    def _n_cells(self, slots: Tokens[Slot]) -> int:
        """Cells of some slots: of each those that it shares with none before it."""
        places = [self._slots.index(slot) for slot in slots]
        n_cells = 0
        for n, slot in enumerate(slots):
            pairs = (frozenset((places[n], other)) for other in places[:n])
            n_shared = max((self._shared.get(pair, 0) for pair in pairs), default=0)
            n_cells += max(slot.n_tokens - n_shared, 0)
        return n_cells

    def copy(self, source: Slot, slot: Slot, length: int) -> None:
        """Hold the first tokens of another slot, where the backend can copy or share them."""
        if not source.is_pure:
            return
        empty(slot)
        if self._backend.shares_cells:
            slot.sequence.copy(source.sequence, length)
            self._share(source, slot, length)
        elif self._backend.can_slice:
            slot.sequence.load(list(source.sequence.tokens), [source.sequence.save()])
            slot.sequence.crop(length)
        slot.adapters = source.adapters

    def _share(self, source: Slot, slot: Slot, length: int) -> None:
        first, second = self._slots.index(source), self._slots.index(slot)
        for other in range(len(self._slots)):
            if other != second:
                of_source = self._shared.get(frozenset((first, other)), 0)
                n_shared = length if other == first else min(length, of_source)
                self._shared[frozenset((second, other))] = n_shared


def empty(slot: Slot) -> None:
    """Hold nothing in a slot."""
    slot.sequence.crop(0)
    slot.owner, slot.is_pure, slot.n_looked_at = "", True, 0


def _n_usable(slot: Slot, tokens: Tokens[int]) -> int:
    if not slot.is_pure:
        return 0
    length = common_prefix(slot.sequence.tokens, tokens)
    return length if slot.sequence.can_crop(length) else 0


def _gap(held: Tokens[int], tokens: Tokens[int]) -> tuple[int, int] | None:
    """Find the stretch of `held` without which it begins as `tokens`."""
    n_keep = common_prefix(held, tokens)
    held, head = list(held), list(tokens[n_keep : n_keep + MIN_SHIFTED])
    if len(head) < MIN_SHIFTED:
        return None
    for n_drop in range(1, len(held) - n_keep - MIN_SHIFTED + 1):
        at = n_keep + n_drop
        if held[at] == head[0] and held[at : at + MIN_SHIFTED] == head:
            return n_keep, n_drop
    return None
