"""The last tokens unquantised, older ones encoded: quantised, merged or dropped."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from engine.backends.torch.caches.base import (
    CacheConfig,
    KVCache,
    KVState,
    LayerShape,
    check_capacity,
    check_crop,
)
from engine.backends.torch.caches.codecs import Codec
from engine.backends.torch.caches.saved import fill
from engine.errors import StateError
from engine.memory.torch_caches import n_aged, n_tail

NEVER = 1 << 62
"""After every position."""
Rows = tuple[Tensor, ...]
"""Keys and values."""


class WindowedCache(KVCache):
    """Each query sees the last `n_exact` tokens unquantised, with its own, and older ones encoded.

    A group of tokens is encoded once, when its last token leaves this residual window (KIVI, Liu et
    al. 2024, arXiv 2402.02750). The `n_back` rows before the window stay unquantised too, so that
    drafts can be rolled back to the bit.

    Args:
        name: Name of the cache type, part of saved states.
        shape: Shape of the layer.
        config: Capacity and device.
        codecs: Codecs of keys and of values.
        n_exact: Length of the residual window; it is longer while a group is incomplete.
        dtypes: Types of the unquantised keys and values; None is that of the attention.
    """

    length = 0

    def __init__(
        self,
        name: str,
        shape: LayerShape,
        config: CacheConfig,
        codecs: tuple[Codec, Codec],
        *,
        n_exact: int,
        dtypes: tuple[torch.dtype, torch.dtype] | None = None,
    ) -> None:
        self._name = f"{name}, {n_exact} exact"
        self._codecs, self._config, self._n_exact = codecs, config, n_exact
        self._group = math.lcm(codecs[0].group, codecs[1].group)
        heads = (config.n_batch, shape.n_kv_heads)
        n_coded = self._n_coded(config.n_ctx)
        n_rows = n_tail(config.n_ctx, n_exact, config.n_back, self._group)
        head_dims = (shape.k_head_dim, shape.v_head_dim)
        self._coded: Rows = tuple(
            torch.empty(
                (*heads, n_coded // codec.group, codec.group_bytes),
                dtype=torch.uint8, device=config.device,
            )
            for codec in codecs
        )  # fmt: skip
        self._tail: Rows = tuple(
            torch.empty((*heads, n_rows, head_dim), dtype=dtype, device=config.device)
            for head_dim, dtype in zip(head_dims, dtypes or (config.dtype,) * 2, strict=True)
        )
        self._start = 0
        """First token of the tail: a multiple of `_group`."""

    def tensors(self) -> Iterable[Tensor]:
        return *self._coded, *self._tail

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        first, n_new = self.length, keys.shape[2]
        check_capacity(first, n_new, self._config.n_ctx)
        exact = tuple(
            torch.cat((tail[:, :, : first - self._start], new.to(tail.dtype)), 2)
            for tail, new in zip(self._tail, (keys, values), strict=True)
        )
        self.length += n_new
        self._encode(exact, self._n_coded(first), self._n_coded(self.length))
        state = self._state(exact, first)
        self._store_tail(exact)
        return state

    def state(self) -> KVState:
        n_rows = self.length - self._start
        return self._state(tuple(t[:, :, :n_rows] for t in self._tail), max(0, self.length - 1))

    def can_crop(self, length: int) -> bool:
        is_held = 0 <= length <= self.length
        return is_held and (length == 0 or self._start <= self._n_coded(length))

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self.length = length
        self._start = min(self._start, length)

    def held(self) -> dict[str, Tensor]:
        n_coded, n_rows = self._n_coded(self.length), self.length - self._start
        coded = [
            each[:, :, : n_coded // codec.group]
            for codec, each in zip(self._codecs, self._coded, strict=True)
        ]
        names = ("coded keys", "coded values", "keys", "values")
        tensors = zip(names, (*coded, *(each[:, :, :n_rows] for each in self._tail)), strict=True)
        return {f"{self._name}, {name}": each for name, each in tensors}

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        check_capacity(0, length, self._config.n_ctx)
        exact = found.get(f"{self._name}, keys")
        start = 0 if exact is None or exact.dim() != 4 else length - exact.shape[2]
        if not 0 <= start <= self._n_coded(length) or start % self._group:
            raise StateError("the saved state is damaged")
        self.length, self._start = length, start
        fill(self.held(), found)

    def _n_coded(self, length: int) -> int:
        """Tokens that the last one of `length` reads encoded."""
        return n_aged(length, self._n_exact, self._group)

    def _encode(self, exact: Rows, first: int, last: int) -> None:
        if first == last:
            return
        for codec, coded, rows in zip(self._codecs, self._coded, exact, strict=True):
            leaving = rows[:, :, first - self._start : last - self._start].float()
            coded[:, :, first // codec.group : last // codec.group] = codec.encode(leaving)

    def _state(self, exact: Rows, first: int) -> KVState:
        """Keys and values for queries from `first` on; `exact` has the rows from `_start` on."""
        n_coded, n_first = self._n_coded(self.length), self._n_coded(first + 1)
        dtype, rows = self._config.dtype, []
        for codec, coded, tail in zip(self._codecs, self._coded, exact, strict=True):
            old = codec.decode(coded[:, :, : n_coded // codec.group]).to(dtype)
            rows.append(torch.cat((old, tail[:, :, n_first - self._start :].to(dtype)), 2))
        positions, ends = self._positions(n_coded, n_first)
        if n_first == n_coded:
            return KVState(rows[0], rows[1], positions)
        n_old = rows[0].shape[2] - (self.length - n_first)
        seen = torch.stack((torch.zeros_like(ends), torch.full_like(ends, NEVER)))
        seen[0, :n_old] = ends[:n_old]
        seen[1, n_old:] = ends[n_old:]
        return KVState(rows[0], rows[1], positions, seen)

    def _positions(self, n_coded: int, n_first: int) -> tuple[Tensor, Tensor]:
        """The position of each entry, and the first query that sees its group encoded."""
        device, codec = self._config.device, self._codecs[0]
        step = max(1, codec.group // max(1, codec.n_entries))
        n_old = n_coded // codec.group * codec.n_entries
        old = torch.arange(n_old, device=device) * step + step - 1
        positions = torch.cat((old, torch.arange(n_first, self.length, device=device)))
        return positions, (positions // self._group + 1) * self._group + self._n_exact - 1

    def _store_tail(self, exact: Rows) -> None:
        """Store the rows that later queries or a roll-back read."""
        start = max(self._start, self._n_coded(max(0, self.length - self._config.n_back)))
        for tail, rows in zip(self._tail, exact, strict=True):
            tail[:, :, : self.length - start] = rows[:, :, start - self._start :]
        self._start = start
