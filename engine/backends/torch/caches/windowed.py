"""The last tokens as they were computed, and older ones coded: quantised, merged or dropped."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from engine.backends.torch.caches.base import (
    NEVER,
    CacheRoom,
    KVCache,
    KVState,
    LayerShape,
    check_crop,
    check_room,
)
from engine.backends.torch.caches.codecs import Codec
from engine.backends.torch.caches.saved import fill
from engine.errors import StateError
from engine.memory.torch_caches import n_aged, n_tail


class WindowedCache(KVCache):
    """A query sees the last `n_exact` tokens exactly, its own among them, and older groups coded.

    A group is coded once, when its last token leaves the window, and never again. The exact rows of
    the `n_back` tokens before the window are kept too, so that a draft of that length can be rolled
    back to the bit. With `n_exact` 0 and groups of one token every row is read coded, its own too,
    nothing is kept beside it, and any length can be cropped to.

    Args:
        name: Of the kind; saved states carry it.
        shape: Of the layer.
        room: For how many tokens, and where.
        codecs: Of keys and of values; both merge the same number of tokens, or none does.
        n_exact: Tokens that a query sees exactly; more where a group is not complete.
        n_back: Tokens that can be rolled back.
        dtypes: Of the exact keys and values; None is that of the computation.
    """

    length = 0

    def __init__(
        self,
        name: str,
        shape: LayerShape,
        room: CacheRoom,
        codecs: tuple[Codec, Codec],
        *,
        n_exact: int,
        n_back: int,
        dtypes: tuple[torch.dtype, torch.dtype] | None = None,
    ) -> None:
        self._name = f"{name}, {n_exact} exact"
        self._codecs, self._room, self._n_exact = codecs, room, n_exact
        self._group = math.lcm(codecs[0].group, codecs[1].group)
        self._codes_all = n_exact == 0 and self._group == 1
        self._n_back = 0 if self._codes_all else n_back
        heads = (room.n_batch, shape.n_kv_heads)
        n_coded = self._n_aged(room.n_ctx)
        self._coded = tuple(
            torch.empty(
                (*heads, n_coded // each.group, each.group_bytes),
                dtype=torch.uint8,
                device=room.device,
            )
            for each in codecs
        )
        n_rows = 0 if self._codes_all else n_tail(room.n_ctx, n_exact, n_back, self._group)
        self._tail = tuple(
            torch.empty(
                (*heads, n_rows, head_dim),
                dtype=dtype,
                device=room.device,
            )
            for head_dim, dtype in zip(
                (shape.k_head_dim, shape.v_head_dim),
                dtypes or (room.dtype, room.dtype),
                strict=True,
            )
        )
        self._start = 0
        """Of the tail: a multiple of `_group`."""

    def tensors(self) -> Iterable[Tensor]:
        return *self._coded, *self._tail

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        first, n_new = self.length, keys.shape[2]
        check_room(first, n_new, self._room.n_ctx)
        exact = tuple(
            torch.cat((tail[:, :, : first - self._start], new.to(tail.dtype)), 2)
            for tail, new in zip(self._tail, (keys, values), strict=True)
        )
        self._encode(exact, first, first + n_new)
        self.length += n_new
        state = self._state(exact, first)
        self._keep(exact)
        return state

    def state(self) -> KVState:
        held = self.length - self._start
        exact = tuple(tail[:, :, :held] for tail in self._tail)
        return self._state(exact, max(0, self.length - 1))

    def can_crop(self, length: int) -> bool:
        if not 0 <= length <= self.length:
            return False
        return length == 0 or self._codes_all or self._start <= self._n_aged(length)

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self.length = length
        self._start = length if self._codes_all else min(self._start, length)

    def held(self) -> dict[str, Tensor]:
        n_aged = self._n_aged(self.length)
        coded = [
            each[:, :, : n_aged // codec.group]
            for codec, each in zip(self._codecs, self._coded, strict=True)
        ]
        tail = [each[:, :, : self.length - self._start] for each in self._tail]
        names = ("coded keys", "coded values", "keys", "values")
        tensors = zip(names, (*coded, *tail), strict=True)
        return {f"{self._name}, {name}": each for name, each in tensors}

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        check_room(0, length, self._room.n_ctx)
        exact = found.get(f"{self._name}, keys")
        start = 0 if exact is None or exact.dim() != 4 else length - exact.shape[2]
        if not 0 <= start <= self._n_aged(length) or start % self._group:
            raise StateError("the saved state is damaged")
        self.length, self._start = length, start
        fill(self.held(), found)

    def _n_aged(self, length: int) -> int:
        """Tokens that the last one of `length` reads coded."""
        return n_aged(length, self._n_exact, self._group)

    def _encode(self, exact: tuple[Tensor, ...], before: int, after: int) -> None:
        """Code the groups that leave the window while the line grows."""
        first, last = self._n_aged(before), self._n_aged(after)
        if first == last:
            return
        for codec, coded, rows in zip(self._codecs, self._coded, exact, strict=True):
            leaving = rows[:, :, first - self._start : last - self._start].float()
            coded[:, :, first // codec.group : last // codec.group] = codec.encode(leaving)

    def _state(self, exact: tuple[Tensor, ...], first: int) -> KVState:
        """What the queries from `first` on see; `exact` are the rows from `_start` on."""
        n_aged = self._n_aged(self.length)
        n_first = self.length if self._codes_all else self._n_aged(first + 1)
        dtype = self._room.dtype
        rows = []
        for codec, coded, tail in zip(self._codecs, self._coded, exact, strict=True):
            old = codec.decode(coded[:, :, : n_aged // codec.group]).to(dtype)
            rows.append(torch.cat((old, tail[:, :, n_first - self._start :].to(dtype)), 2))
        positions, ends = self._positions(n_aged, n_first)
        if n_first == n_aged or self._codes_all:
            return KVState(rows[0], rows[1], positions)
        n_old = rows[0].shape[2] - (self.length - n_first)
        seen = torch.stack((torch.zeros_like(ends), torch.full_like(ends, NEVER)))
        seen[0, :n_old] = ends[:n_old]
        seen[1, n_old:] = ends[n_old:]
        return KVState(rows[0], rows[1], positions, seen)

    def _positions(self, n_aged: int, n_first: int) -> tuple[Tensor, Tensor]:
        """Of each entry: its token's position, and the first query that sees its group coded."""
        device = self._room.device
        step = max(1, self._codecs[0].group // max(1, self._codecs[0].n_entries))
        n_old = n_aged // self._codecs[0].group * self._codecs[0].n_entries
        old = torch.arange(n_old, device=device) * step + step - 1
        positions = torch.cat((old, torch.arange(n_first, self.length, device=device)))
        ends = (positions // self._group + 1) * self._group + self._n_exact - 1
        return positions, ends

    def _keep(self, exact: tuple[Tensor, ...]) -> None:
        """Hold the rows that a roll-back may need, and no others."""
        start = max(self._start, self._n_aged(max(0, self.length - self._n_back)))
        for tail, rows in zip(self._tail, exact, strict=True):
            tail[:, :, : self.length - start] = rows[:, :, start - self._start :]
        self._start = start
