"""All keys and values, one entry a token, in a floating type."""

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.backends.torch.caches.base import (
    NEVER,
    CacheRoom,
    KVState,
    LayerShape,
    check_crop,
    check_room,
)
from engine.backends.torch.caches.saved import read_tensors, write_tensors
from engine.errors import StateError


class DenseCache:
    """Rows for `n_ctx` tokens, filled from the front; any length can be cropped to.

    Reading costs nothing where the type is that of the computation: views are given then.
    """

    def __init__(
        self, shape: LayerShape, room: CacheRoom, dtype_k: torch.dtype, dtype_v: torch.dtype
    ) -> None:
        rows = (room.n_batch, shape.n_kv_heads, room.n_ctx)
        # Zeros: rows that a mask hides are multiplied all the same, and must be numbers.
        self._keys = torch.zeros((*rows, shape.k_head_dim), dtype=dtype_k, device=room.device)
        self._values = torch.zeros((*rows, shape.v_head_dim), dtype=dtype_v, device=room.device)
        self._room = room
        self.length = 0
        """Tokens seen."""

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

    def can_crop(self, length: int) -> bool:
        return 0 <= length <= self.length

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self.length = length

    def save(self) -> bytes:
        keys, values = self._held()
        return write_tensors("dense", self.length, {"keys": keys, "values": values})

    def load(self, saved: bytes | memoryview) -> None:
        self.length = 0
        length, found = read_tensors(saved, "dense", ("keys", "values"), self._room.device)
        check_room(0, length, self._room.n_ctx)
        keys, values = self._keys[:, :, :length], self._values[:, :, :length]
        for held, read in ((keys, found["keys"]), (values, found["values"])):
            if held.dtype != read.dtype or held.shape != read.shape:
                raise StateError(
                    f"the state has {list(read.shape)} {read.dtype} and the cache "
                    f"{list(held.shape)} {held.dtype}: it is of another model or cache type"
                )
            held.copy_(read)
        self.length = length

    def _held(self) -> tuple[Tensor, Tensor]:
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]


class StaticCache(DenseCache):
    """Gives all `n_ctx` rows each time: shapes never change, a mask hides what is not filled."""

    def state(self) -> KVState:
        state = self._state(self._room.n_ctx)
        state.positions[self.length :] = NEVER
        return state
