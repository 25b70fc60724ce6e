"""All keys and values, one entry a token, in a floating type."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from engine.backends.torch.caches.base import (
    CacheRoom,
    KVCache,
    KVState,
    LayerShape,
    check_crop,
    check_room,
)
from engine.backends.torch.caches.saved import fill

KEYS, VALUES = "dense keys", "dense values"
"""Names of the tensors that are saved, `[batch, n_kv_heads, n_tokens, head_dim]`."""


class DenseCache(KVCache):
    """Rows for `n_ctx` tokens, filled from the front; any length can be cropped to.

    Reading costs nothing where the type is that of the computation: views are given then.
    """

    length = 0

    def __init__(
        self, shape: LayerShape, room: CacheRoom, dtype_k: torch.dtype, dtype_v: torch.dtype
    ) -> None:
        rows = (room.n_batch, shape.n_kv_heads, room.n_ctx)
        # Zeros: rows that a mask hides are multiplied all the same, and must be numbers.
        self._keys = torch.zeros((*rows, shape.k_head_dim), dtype=dtype_k, device=room.device)
        self._values = torch.zeros((*rows, shape.v_head_dim), dtype=dtype_v, device=room.device)
        self._room = room

    def tensors(self) -> Iterable[Tensor]:
        return self._keys, self._values

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        start, n_new = self.length, keys.shape[2]
        check_room(start, n_new, self._room.n_ctx)
        self._keys[:, :, start : start + n_new] = keys
        self._values[:, :, start : start + n_new] = values
        self.length += n_new
        return self.state()

    def put(self, keys: Tensor, values: Tensor, at: Tensor, n_rows: int) -> KVState:
        """Write tokens, and give the first rows: the same shapes however long the line is.

        Nothing is asked of the device, and `length` is left to the caller, so that a graph can have
        it.

        Args:
            keys: `[batch, n_kv_heads, n_new, k_head_dim]`
            values: `[batch, n_kv_heads, n_new, v_head_dim]`
            at: `[n_new]` int64, their positions, for which there is room.
            n_rows: Rows that are given, filled or not; `at` lies among them.
        """
        self._keys.index_copy_(2, at, keys.to(self._keys.dtype))
        self._values.index_copy_(2, at, values.to(self._values.dtype))
        return self._state(n_rows)

    def state(self) -> KVState:
        return self._state(self.length)

    def _state(self, n_rows: int) -> KVState:
        dtype = self._room.dtype
        return KVState(
            self._keys[:, :, :n_rows].to(dtype),
            self._values[:, :, :n_rows].to(dtype),
            torch.arange(n_rows, device=self._room.device),
        )

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self.length = length

    def held(self) -> dict[str, Tensor]:
        n = self.length
        return {KEYS: self._keys[:, :, :n], VALUES: self._values[:, :, :n]}

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        check_room(0, length, self._room.n_ctx)
        self.length = length
        fill(self.held(), found)
