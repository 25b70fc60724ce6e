"""Slots: sequences inside the context, each with the line of one chat or branch."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Backend, Sequence, common_prefix
from engine.configuration import Adapter
from engine.errors import ContextFullError


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence, and whose line it holds."""

    sequence: Sequence
    owner: str = ""
    turn: int = 0
    """When it was used last, in replies."""
    is_busy: bool = False
    """Whether a reply is being made in it."""
    adapters: tuple[Adapter, ...] | None = None
    """What its cells were computed with; None is what the model was loaded with."""
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
        alike = (each for each in self._slots if each.adapters == adapters)
        return max((common_prefix(each.sequence.tokens, tokens) for each in alike), default=0)

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
                f"all {len(self._slots)} slots are generating replies: wait until one is "
                "free, or load the model with more slots"
            )
        return min(idle, key=lambda slot: (slot.n_tokens > 0, slot.turn))

    def use(self, slot: Slot, owner: str) -> None:
        """Note that a reply is made in this slot."""
        self._turn += 1
        slot.owner, slot.turn = owner, self._turn

    @property
    def n_held(self) -> int:
        """Cells that all sequences hold."""
        return sum(slot.n_tokens for slot in self._slots)

    def copy(self, source: Slot, slot: Slot, length: int) -> None:
        """Hold the first tokens of another slot, where states can be cut."""
        empty(slot)
        if self._backend.can_slice:
            slot.sequence.load(list(source.sequence.tokens), [source.sequence.save()])
            slot.sequence.crop(length)
        slot.adapters = source.adapters


def empty(slot: Slot) -> None:
    """Hold nothing in a slot."""
    slot.sequence.crop(0)
    slot.owner, slot.n_looked_at = "", 0


def _n_usable(slot: Slot, tokens: Tokens[int]) -> int:
    length = common_prefix(slot.sequence.tokens, tokens)
    return length if slot.sequence.can_crop(length) else 0
