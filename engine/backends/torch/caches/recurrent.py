"""The state of a recurrent layer, whose size does not depend on the sequence's length."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from engine.backends.torch.caches.base import CacheConfig, LayerCache, check_crop
from engine.backends.torch.caches.saved import fill

StateSizes = tuple[tuple[int, ...], ...]
"""Size of each state of a layer, such as a convolution's last inputs and an SSM's hidden state."""


class RecurrentCache(LayerCache):
    """The states after the last token and after each of the `n_back` tokens before it.

    They are in a ring of `n_back + 1`, so that a draft can be rolled back. States are stored in the
    type of the configuration; the model continues from the stored state, so that decoding one token
    at a time and several at once agree.
    """

    length = 0

    def __init__(self, sizes: StateSizes, config: CacheConfig, *, n_back: int) -> None:
        self._ring = tuple(
            torch.zeros((n_back + 1, config.n_batch, *size), dtype=config.dtype,
                        device=config.device)
            for size in sizes
        )  # fmt: skip
        self._n_stored = n_back + 1
        self._first = 0
        """Smallest length whose states are in the ring."""

    def tensors(self) -> Iterable[Tensor]:
        return self._ring

    def update(self, states: Sequence[Tensor]) -> None:
        """Store the states after one more token, each `[batch, *size]`."""
        self.length += 1
        self._first = max(self._first, self.length - self._n_stored + 1)
        for ring, state in zip(self._ring, states, strict=True):
            ring[self.length % self._n_stored] = state

    def state(self) -> tuple[Tensor, ...]:
        """Views of the states after the last token; zeros in an empty cache."""
        return tuple(ring[self.length % self._n_stored] for ring in self._ring)

    def can_crop(self, length: int) -> bool:
        return length == 0 or self._first <= length <= self.length

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self.length = length
        if length == 0:
            self._first = 0
            for ring in self._ring:
                ring[0] = 0

    def held(self) -> dict[str, Tensor]:
        return {f"recurrent {number}": each for number, each in enumerate(self.state())}

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        self.length = self._first = length
        fill(self.held(), found)
