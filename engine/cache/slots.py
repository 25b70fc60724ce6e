"""Slots: sequences in the context, each with the tokens of one conversation or branch."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Backend, Sequence, common_prefix
from engine.configuration import Adapter
from engine.errors import ContextFullError

Adapters = tuple[Adapter, ...] | None
"""Adapters of a reply; None for those the model was loaded with."""


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence in the context and its owner."""

    sequence: Sequence
    owner: str = ""
    turn: int = 0
    """Number of the last reply that used it."""
    is_busy: bool = False
    """Whether a reply is being generated in it."""
    adapters: Adapters = None
    """Adapters its cells were computed with."""
    n_at_save: int = 0
    """Length of the sequence at the last save."""

    @property
    def n_tokens(self) -> int:
        """Length of the sequence."""
        return len(self.sequence.tokens)

    def n_common(self, tokens: Tokens[int], adapters: Adapters) -> int:
        """Length of its common prefix with `tokens`; 0 with other adapters."""
        return common_prefix(self.sequence.tokens, tokens) if self.adapters == adapters else 0

    def clear(self) -> None:
        """Crop to 0 tokens and forget the owner."""
        self.sequence.crop(0)
        self.owner, self.n_at_save = "", 0


class Slots:
    """The slots opened so far, and the choice of one for a prompt."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.opened = [Slot(backend.open())]
        self._turn = 0

    def best(self, tokens: Tokens[int], adapters: Adapters) -> tuple[Slot, int]:
        """The slot with the longest usable prefix of `tokens`, and its length."""

        def n_usable(slot: Slot) -> int:
            length = slot.n_common(tokens, adapters)
            return length if slot.sequence.can_crop(length) else 0

        found = ((slot, n_usable(slot)) for slot in self.opened)
        return max(found, key=lambda each: (each[1], each[0].turn))

    def choose(self, best: Slot, n_common: int, owner: str) -> Slot:
        """The slot for a prompt whose first `n_common` tokens `best` holds.

        `best` if it is idle and no other owner's sequence would be cropped; otherwise a new slot
        if possible, else the least recently used idle one.

        Raises:
            ContextFullError: all slots are generating.
        """
        is_own = not best.owner or best.owner == owner or best.n_tokens == n_common
        if is_own and not best.is_busy:
            return best
        if len(self.opened) < self._backend.n_sequences:
            self.opened.append(Slot(self._backend.open()))
            return self.opened[-1]
        idle = [slot for slot in self.opened if not slot.is_busy]
        if not idle:
            raise ContextFullError(
                f"all {len(self.opened)} slots are generating replies: wait until one is "
                "free, or load the model with more slots"
            )
        return min(idle, key=lambda slot: (slot.n_tokens > 0, slot.turn))

    def use(self, slot: Slot, owner: str) -> None:
        """Assign a slot to a new reply of `owner`."""
        self._turn += 1
        slot.owner, slot.turn, slot.is_busy = owner, self._turn, True
