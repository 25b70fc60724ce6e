"""The interface of one layer's cache, and what attention reads from it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import ContextFullError, CropUnsupportedError
from engine.memory.torch_caches import N_BACK, N_EXACT


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of the keys and values that an attention layer caches for a token."""

    n_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    window: int | None = None
    """Tokens that a query sees, including its own; None is all."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Size, type and device of a cache."""

    n_ctx: int
    """Maximum tokens of a sequence."""
    dtype: torch.dtype
    """Type of the attention: of the arguments and results of `update`."""
    device: torch.device
    n_batch: int = 1
    """Sequences of equal length in one tensor."""
    n_exact: int = N_EXACT
    """Residual length: the last tokens, which a quantised type stores unquantised."""
    n_back: int = N_BACK
    """Tokens that can be rolled back in a cache that cannot be cropped anywhere."""
    keeps_windows: bool = False
    """Whether layers with a sliding window store all tokens, so that they can be cropped."""


@dataclass(frozen=True, slots=True)
class KVState:
    """Entries for attention; `mask` returns which query sees which entry."""

    keys: Tensor
    """`[batch, n_kv_heads, n_entries, k_head_dim]` in the type of the attention."""
    values: Tensor
    """`[batch, n_kv_heads, n_entries, v_head_dim]`"""
    positions: Tensor
    """`[n_entries]` int64: position of an entry's token, of the last one if tokens are merged."""
    seen: Tensor | None = None
    """`[2, n_entries]` int64: first query that sees an entry, and first one that no longer does.

    None if every query from the entry's position on sees it. A token that is quantised within a
    batch has two entries: unquantised for earlier queries, quantised for later ones.
    """

    def mask(self, queries: Tensor, window: int | None = None) -> Tensor:
        """`[n_queries, n_entries]` bool: whether a query sees an entry.

        Args:
            queries: `[n_queries]` int64 positions.
            window: Tokens that a query sees, including its own; None is all.
        """
        distances = queries[:, None] - self.positions
        sees = distances >= 0
        if window is not None:
            sees &= distances < window
        if self.seen is not None:
            sees &= (queries[:, None] >= self.seen[0]) & (queries[:, None] < self.seen[1])
        return sees


class LayerCache(ABC):
    """The cache of one layer for the first `length` tokens of a sequence."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens seen."""

    @abstractmethod
    def tensors(self) -> Iterable[Tensor]:
        """All allocated tensors; caches may share some (`held_bytes`)."""

    def can_crop(self, length: int) -> bool:
        """Whether `crop(length)` restores the cache exactly as it was at that length."""
        return 0 <= length <= self.length

    @abstractmethod
    def crop(self, length: int) -> None:
        """Truncate to the first `length` tokens; `crop(0)` always works.

        Raises:
            CropUnsupportedError: the cache no longer has what the shorter sequence needs.
        """

    @abstractmethod
    def held(self) -> Mapping[str, Tensor]:
        """The tensors of a saved state; their names contain the cache type."""

    @abstractmethod
    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        """Replace the content by the tensors that `held` returned for `length` tokens.

        Raises:
            StateError: the tensors belong to another cache type or shape.
            ContextFullError: `length` exceeds the capacity.
        """


class KVCache(LayerCache):
    """Keys and values of one attention layer.

    What a query sees depends only on its position and the tokens before it, not on the batches in
    which they came: decoding, verifying and prefilling agree to the bit, and so do a cropped cache
    and one that was never longer.
    """

    @abstractmethod
    def update(self, keys: Tensor, values: Tensor) -> KVState:
        """Append tokens and return what they see, valid until the next call.

        Args:
            keys: `[batch, n_kv_heads, n_new, k_head_dim]`, n_new at least 1.
            values: `[batch, n_kv_heads, n_new, v_head_dim]`

        Raises:
            ContextFullError: the tokens do not fit; nothing was appended.
        """

    @abstractmethod
    def state(self) -> KVState:
        """Keys and values that the last token attends to; no entries in an empty cache."""


def held_bytes(caches: Iterable[LayerCache]) -> int:
    """Allocated bytes of caches; shared tensors count once."""
    return storage_bytes(tensor for cache in caches for tensor in cache.tensors())


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors; views of one storage count once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def check_capacity(length: int, n_new: int, n_ctx: int) -> None:
    """Raise `ContextFullError` if new tokens do not fit."""
    if length + n_new > n_ctx:
        raise ContextFullError(
            f"{length} tokens are cached, so {n_new} more exceed n_ctx = {n_ctx}: raise n_ctx, "
            "or shorten the text"
        )


def check_crop(cache: LayerCache, length: int) -> None:
    """Raise `CropUnsupportedError` if a cache cannot be cropped to a length."""
    if length and not cache.can_crop(length):
        raise CropUnsupportedError(
            f"the cache of {cache.length} tokens no longer contains all of its first {length} "
            "tokens: start again with an empty cache"
        )
