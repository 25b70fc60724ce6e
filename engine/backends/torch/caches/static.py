"""Rows for every position, filled or not: shapes never change, as compiled graphs want it."""

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


class StaticCache:
    """All `n_ctx` rows are given each time; the positions say which are filled.

    Where the next row goes lies on the device, so that a captured graph can be replayed; compiled
    code does not check the room, which its caller does before.
    """

    def __init__(
        self, shape: LayerShape, room: CacheRoom, dtype_k: torch.dtype, dtype_v: torch.dtype
    ) -> None:
        rows, device = (room.n_batch, shape.n_kv_heads, room.n_ctx), room.device
        self._keys = torch.zeros((*rows, shape.k_head_dim), dtype=dtype_k, device=device)
        self._values = torch.zeros((*rows, shape.v_head_dim), dtype=dtype_v, device=device)
        self._positions = torch.full((room.n_ctx,), NEVER, dtype=torch.int64, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._room = room

    @property
    def length(self) -> int:
        return int(self._next)

    def tensors(self) -> Iterable[Tensor]:
        return self._keys, self._values, self._positions, self._next

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        n_new = keys.shape[2]
        if not torch.compiler.is_compiling():
            check_room(self.length, n_new, self._room.n_ctx)
        rows = self._next + torch.arange(n_new, device=self._room.device)
        self._keys.index_copy_(2, rows, keys.to(self._keys.dtype))
        self._values.index_copy_(2, rows, values.to(self._values.dtype))
        self._positions.index_copy_(0, rows, rows)
        self._next += n_new
        return self.state()

    def state(self) -> KVState:
        dtype = self._room.dtype
        return KVState(self._keys.to(dtype), self._values.to(dtype), self._positions)

    def can_crop(self, length: int) -> bool:
        return 0 <= length <= self.length

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self._positions[length:] = NEVER
        self._next.fill_(length)

    def save(self) -> bytes:
        length = self.length
        held = {"keys": self._keys[:, :, :length], "values": self._values[:, :, :length]}
        return write_tensors("static", length, held)

    def load(self, saved: bytes | memoryview) -> None:
        self.crop(0)
        length, found = read_tensors(saved, "static", ("keys", "values"), self._room.device)
        check_room(0, length, self._room.n_ctx)
        for held, read in ((self._keys, found["keys"]), (self._values, found["values"])):
            if held.dtype != read.dtype or held[:, :, :length].shape != read.shape:
                raise StateError("the state is of another model or cache type than this cache")
            held[:, :, :length] = read
        self._positions[:length] = torch.arange(length, device=self._room.device)
        self._next.fill_(length)
