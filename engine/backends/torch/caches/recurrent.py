"""What layers without attention carry on: states of one size, however long the line is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backends.torch.caches.base import CacheRoom, SavedCache
from engine.backends.torch.caches.saved import fill
from engine.errors import CropUnsupportedError


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """The states of a layer, such as a convolution's last inputs and an SSM's hidden state."""

    sizes: tuple[tuple[int, ...], ...]
    """Of each state, without the batch: `(d_inner, d_conv - 1)`, `(d_inner, d_state)` for Mamba."""


class RecurrentCache(SavedCache):
    """The states after the last token, and after each of the `n_back` tokens before it.

    They are kept in the type of the room, which may be shorter than that of the computation: who
    goes on from a state reads it back, so that one token after the other and many at once agree.

    A state has no past, so a draft is rolled back to states that were kept: those after the last
    tokens lie in a ring of `n_back + 1`, and any other length but 0 cannot be cropped to.
    """

    length = 0

    def __init__(self, shape: RecurrentShape, room: CacheRoom, *, n_back: int) -> None:
        self._ring = tuple(
            torch.zeros((n_back + 1, room.n_batch, *size), dtype=room.dtype, device=room.device)
            for size in shape.sizes
        )
        self._room, self._n_kept = room, n_back + 1
        self._first = 0
        """Length of the shortest line whose states are held."""

    def tensors(self) -> Iterable[Tensor]:
        return self._ring

    def update(self, states: Sequence[Tensor]) -> None:
        """Keep the states after one more token, each `[batch, *size]`."""
        self.length += 1
        self._first = max(self._first, self.length - self._n_kept + 1)
        for ring, state in zip(self._ring, states, strict=True):
            ring[self.length % self._n_kept] = state

    def state(self) -> tuple[Tensor, ...]:
        """The states after the last token, zeros without one; valid until the ring comes round."""
        return tuple(ring[self.length % self._n_kept] for ring in self._ring)

    def can_crop(self, length: int) -> bool:
        return length == 0 or self._first <= length <= self.length

    def crop(self, length: int) -> None:
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"the cache has recurrent states only for depths {self._first} to "
                f"{self.length}, not for {length}: start again with an empty cache"
            )
        self.length = length
        if length == 0:
            self._first = 0
            for ring in self._ring:
                ring[0] = 0

    def held(self) -> dict[str, Tensor]:
        """The states after the last token."""
        return {f"recurrent {number}": each for number, each in enumerate(self.state())}

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        """Hold saved states; the line cannot be cropped until it has grown."""
        self.length = self._first = length
        fill(self.held(), found)
