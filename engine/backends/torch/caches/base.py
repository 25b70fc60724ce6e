"""What a cache of one layer promises, and what attention reads from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.backends.torch.caches.saved import State, read_tensors, write_tensors
from engine.errors import ContextFullError, CropUnsupportedError, EngineError
from engine.memory.torch_caches import N_BACK, N_EXACT

NEVER = 1 << 62
"""A position that no query reaches: that of an entry which is not filled."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer of attention keeps of a token."""

    n_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    window: int | None = None
    """Tokens that a query of this layer sees, itself among them; None is all."""


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """For how much a cache is made, and where it lies."""

    n_ctx: int
    """Most tokens of a sequence."""
    dtype: torch.dtype
    """In which attention computes: what `update` is given and what it gives back."""
    device: torch.device
    n_batch: int = 1
    """Sequences of one length in a tensor."""
    n_exact: int = N_EXACT
    """Tokens that a query sees as they were computed, where older ones are coded."""
    n_back: int = N_BACK
    """Tokens that can be rolled back where not every length can be cropped to."""
    keeps_windows: bool = False
    """Whether layers with a sliding window keep whole lines: any length can be cropped to then."""


@dataclass(frozen=True, slots=True)
class KVState:
    """Entries that attention may read; `mask` says which query sees which."""

    keys: Tensor
    """`[batch, n_kv_heads, n_held, k_head_dim]` in the dtype of the computation."""
    values: Tensor
    """`[batch, n_kv_heads, n_held, v_head_dim]`"""
    positions: Tensor
    """`[n_held]` int64: of the token that an entry stands for, the last one of several."""
    seen: Tensor | None = None
    """`[2, n_held]` int64: the first query that sees an entry, and the first that no longer does.

    None where every query after a position sees it. A token stands twice in a batch in which it
    leaves the window of full precision: exactly for the queries before, coded for those after.
    """

    def mask(self, queries: Tensor, window: int | None = None) -> Tensor:
        """`[n_queries, n_held]` bool: whether a query at a position sees an entry.

        Args:
            queries: `[n_queries]` int64 positions.
            window: Tokens that a query sees, itself among them; None is all.
        """
        distances = queries[:, None] - self.positions
        sees = distances >= 0
        if window is not None:
            sees &= distances < window
        if self.seen is not None:
            sees &= (queries[:, None] >= self.seen[0]) & (queries[:, None] < self.seen[1])
        return sees


class SavedCache(Protocol):
    """A cache that is saved as tensors with names."""

    @property
    def length(self) -> int:
        """Tokens seen."""
        ...

    def tensors(self) -> Iterable[Tensor]:
        """All tensors that are allocated; caches may share some (`held_bytes`)."""
        ...

    def can_crop(self, length: int) -> bool:
        """Whether `crop(length)` would leave a cache that is as if never longer."""
        return 0 <= length <= self.length

    def crop(self, length: int) -> None:
        """Hold the first `length` tokens only; absolute, and `crop(0)` always works.

        Raises:
            CropUnsupportedError: what the shorter line needs is no longer held.
        """
        ...

    def held(self) -> Mapping[str, Tensor]:
        """What is saved of the tokens, by names that say which kind of cache it is of."""
        ...

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        """Hold what `held` of a cache of the same kind and shape gave for `length` tokens.

        Raises:
            StateError: another kind's tensors, or of other sizes.
            ContextFullError: more tokens than there is room for.
        """
        ...

    def save(self) -> bytes:
        """All that is held, as bytes that `load` of a cache of the same kind and shape reads."""
        return write_tensors(self.held(), self.length)

    def load(self, saved: State) -> None:
        """Hold what was saved instead of what is held.

        Raises:
            StateError: the bytes are damaged, or another kind's; the cache is empty then.
            ContextFullError: more tokens than there is room for; the cache is empty then.
        """
        self.crop(0)
        try:
            self.hold(*read_tensors(saved))
        except EngineError:
            self.crop(0)
            raise


class KVCache(SavedCache, Protocol):
    """Keys and values of one layer for the first `length` tokens of a sequence.

    What a query sees is a function of its position and of the tokens before it, whatever the
    batches were that brought them: decoding, verifying a draft and prefilling agree to the bit, and
    so do a cropped cache and one that was never longer.
    """

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        """Append tokens, and give what they see; valid until the next call.

        Args:
            keys: `[batch, n_kv_heads, n_new, k_head_dim]`, n_new at least 1.
            values: `[batch, n_kv_heads, n_new, v_head_dim]`

        Raises:
            ContextFullError: there is no room for them; nothing was appended.
        """
        ...

    def state(self) -> KVState:
        """What the last token saw; without entries where there is no token."""
        ...


def held_bytes(caches: Iterable[SavedCache]) -> int:
    """Bytes that caches have allocated together; what several share counts once."""
    return storage_bytes(tensor for cache in caches for tensor in cache.tensors())


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors, views of one storage counted once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def check_room(length: int, n_new: int, n_ctx: int) -> None:
    """Raise `ContextFullError` where new tokens do not fit."""
    if length + n_new > n_ctx:
        raise ContextFullError(
            f"{length} tokens are cached, so {n_new} more exceed n_ctx = {n_ctx}: raise n_ctx, "
            "or shorten the text"
        )


def check_crop(cache: KVCache, length: int) -> None:
    """Raise `CropUnsupportedError` where a cache cannot be cut to a length."""
    if length and not cache.can_crop(length):
        raise CropUnsupportedError(
            f"the cache of {cache.length} tokens no longer contains all of its first {length} "
            "tokens: start again with an empty cache"
        )
