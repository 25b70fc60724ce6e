"""Slots: sequences in the context, each with the tokens of one conversation or branch."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Backend, Sequence, common_prefix
from engine.configuration import Adapter
from engine.errors import ContextFullError


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence in the context and its owner."""

    sequence: Sequence
    owner: str = ""
    turn: int = 0
    """Number of the last reply that used it."""
    is_busy: bool = False
    """Whether a reply is being generated in it."""
    adapters: tuple[Adapter, ...] | None = None
    """Adapters its cells were computed with; None for those the model was loaded with."""
    n_at_save: int = 0
    """Its length at the last save."""

    @property
    def n_tokens(self) -> int:
        """Length of the sequence."""
        return len(self.sequence.tokens)


class HotTier:
    """The context's slots, and the choice of one for a prompt."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._slots = [Slot(backend.open())]
        self._turn = 0

    @property
    def slots(self) -> Tokens[Slot]:
        """The slots opened so far."""
        return self._slots

    def best(
        self, tokens: Tokens[int], adapters: tuple[Adapter, ...] | None = None
    ) -> tuple[Slot, int]:
        """The slot with the longest usable prefix of `tokens`, and its length.

        Slots computed with other adapters count as 0.
        """
        return max(
            (
                (slot, _n_usable(slot, tokens) if slot.adapters == adapters else 0)
                for slot in self._slots
            ),
            key=lambda found: (found[1], found[0].turn),
        )

    def n_longest(self, tokens: Tokens[int], adapters: tuple[Adapter, ...] | None) -> int:
        """Length of the longest prefix in any slot, whether it can be cropped there or not."""
        alike = (each for each in self._slots if each.adapters == adapters)
        return max((common_prefix(each.sequence.tokens, tokens) for each in alike), default=0)

    def slot_for(self, best: Slot, n_common: int, owner: str) -> Slot:
        """The slot for a prompt whose first `n_common` tokens `best` holds.

        `best` if it is idle and no other owner's sequence would be cropped, otherwise `victim`.
        """
        is_own = not best.owner or best.owner == owner or best.n_tokens == n_common
        return best if is_own and not best.is_busy else self.victim()

    def victim(self) -> Slot:
        """A newly opened slot if possible, else the least recently used idle one.

        Raises:
            ContextFullError: all slots are generating.
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
        """Assign a slot to a new reply of `owner`."""
        self._turn += 1
        slot.owner, slot.turn = owner, self._turn

    @property
    def n_held(self) -> int:
        """Cells used by all slots."""
        return sum(slot.n_tokens for slot in self._slots)

    def copy(self, source: Slot, slot: Slot, length: int) -> None:
        """Copy the first `length` tokens of another slot; none if states are whole."""
        empty(slot)
        if self._backend.can_slice:
            slot.sequence.load(list(source.sequence.tokens), [source.sequence.save()])
            slot.sequence.crop(length)
        slot.adapters = source.adapters


def empty(slot: Slot) -> None:
    """Crop a slot to 0 tokens and clear its owner."""
    slot.sequence.crop(0)
    slot.owner, slot.n_at_save = "", 0


def _n_usable(slot: Slot, tokens: Tokens[int]) -> int:
    length = common_prefix(slot.sequence.tokens, tokens)
    return length if slot.sequence.can_crop(length) else 0
