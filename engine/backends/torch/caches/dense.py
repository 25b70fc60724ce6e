"""All keys and values, one entry a token, in a floating type."""

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.backends.torch.caches.base import (
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
        self._keys = torch.empty((*rows, shape.k_head_dim), dtype=dtype_k, device=room.device)
        self._values = torch.empty((*rows, shape.v_head_dim), dtype=dtype_v, device=room.device)
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

    def state(self) -> KVState:
        keys, values = self._held()
        positions = torch.arange(self.length, device=self._room.device)
        return KVState(keys.to(self._room.dtype), values.to(self._room.dtype), positions)

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
