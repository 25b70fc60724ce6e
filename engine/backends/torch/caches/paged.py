"""Blocks of a pool, taken as a line grows and shared by lines with one beginning.

A block has rows of all layers for `block_size` tokens; a sequence's table names its blocks in
order. PagedAttention, Kwon et al. 2023, arXiv 2309.06180, sections 4.1 to 4.4.
"""

from collections.abc import Iterable, Mapping, Sequence

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
from engine.errors import ContextFullError
from engine.memory.torch_caches import PAGE


class BlockPool:
    """A fixed number of blocks with counts of those who refer to them.

    Args:
        layers: What each layer keeps of a token.
        room: Where it lies, and how many sequences are in one tensor.
        n_blocks: Of the pool.
        dtype: Of keys and values in it.
        block_size: Tokens of a block.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        room: CacheRoom,
        *,
        n_blocks: int,
        dtype: torch.dtype,
        block_size: int = PAGE,
    ) -> None:
        self.block_size, self.n_blocks, self.room = block_size, n_blocks, room
        self.rows = [
            tuple(
                torch.empty(
                    (n_blocks, room.n_batch, each.n_kv_heads, block_size, head_dim),
                    dtype=dtype,
                    device=room.device,
                )
                for head_dim in (each.k_head_dim, each.v_head_dim)
            )
            for each in layers
        ]
        """Of each layer its keys and values, `[n_blocks, batch, heads, block_size, head_dim]`."""
        self._n_references = [0] * n_blocks
        self._free = list(reversed(range(n_blocks)))
        self.tables: list[BlockTable] = []
        """Of the sequences that are open."""

    @property
    def n_free(self) -> int:
        return len(self._free)

    def open(self) -> "BlockTable":
        """A sequence without blocks."""
        table = BlockTable(self)
        self.tables.append(table)
        return table

    def take(self) -> int:
        """A block that nobody refers to.

        Raises:
            ContextFullError: there is none.
        """
        if not self._free:
            raise ContextFullError(
                f"all {self.n_blocks} blocks of {self.block_size} tokens are in use: close a "
                "sequence, or enlarge the pool"
            )
        block = self._free.pop()
        self._n_references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more refers to a block that is in use."""
        self._n_references[block] += 1

    def release(self, block: int) -> None:
        """One less; the last one frees it."""
        self._n_references[block] -= 1
        if not self._n_references[block]:
            self._free.append(block)

    def n_references(self, block: int) -> int:
        return self._n_references[block]

    def copy_block(self, block: int) -> int:
        """A block of one's own with the rows of a shared one, which loses a reference."""
        own = self.take()
        for layer in self.rows:
            for rows in layer:
                rows[own] = rows[block]
        self.release(block)
        return own

    def fragmentation(self) -> float:
        """Share of the rows of blocks in use that no sequence has filled; blocks count once."""
        filled: dict[int, int] = {}
        for table in self.tables:
            for index, block in enumerate(table.blocks):
                n_rows = min(self.block_size, table.length - index * self.block_size)
                filled[block] = max(filled.get(block, 0), n_rows)
        n_rows = len(filled) * self.block_size
        return 1 - sum(filled.values()) / n_rows if n_rows else 0.0


class BlockTable:
    """The blocks of one sequence, which its layers share; open one with `BlockPool.open`."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.blocks: list[int] = []
        self._lengths = [0] * len(pool.rows)

    @property
    def length(self) -> int:
        """Tokens of the layer that has seen most: within a forward pass, layers differ."""
        return max(self._lengths, default=0)

    def caches(self) -> list["PagedCache"]:
        """A cache for each layer."""
        return [PagedCache(self, layer) for layer in range(len(self.pool.rows))]

    def fork(self, length: int) -> "BlockTable":
        """Another sequence with the same first tokens; their blocks are copied when written to."""
        other = self.pool.open()
        other.blocks = self.blocks[: -(-length // self.pool.block_size)]
        for block in other.blocks:
            self.pool.share(block)
        other._lengths = [length] * len(self._lengths)
        return other

    def length_of(self, layer: int) -> int:
        return self._lengths[layer]

    def grow(self, layer: int, n_new: int) -> None:
        """Blocks of one's own for the next tokens of a layer; all of them, or none."""
        start, size = self._lengths[layer], self.pool.block_size
        first, n_blocks = start // size, -(-(start + n_new) // size)
        n_lacking = max(0, n_blocks - len(self.blocks))
        n_needed = n_lacking + self._n_shared(first, n_blocks)
        if n_needed > self.pool.n_free:
            raise ContextFullError(
                f"{n_new} tokens need {n_needed} blocks of {size} tokens, but only "
                f"{self.pool.n_free} of {self.pool.n_blocks} are free: close a sequence, or "
                "enlarge the pool"
            )
        for index in range(first, min(n_blocks, len(self.blocks))):
            if self.pool.n_references(self.blocks[index]) > 1:
                self.blocks[index] = self.pool.copy_block(self.blocks[index])
        self.blocks += [self.pool.take() for _ in range(n_lacking)]
        self._lengths[layer] = start + n_new

    def crop(self, layer: int, length: int) -> None:
        """Blocks go back to the pool once no layer needs them."""
        self._lengths[layer] = length
        self._release(-(-self.length // self.pool.block_size))

    def close(self) -> None:
        """Give all blocks back; closing twice is harmless."""
        if self in self.pool.tables:
            self._lengths = [0] * len(self._lengths)
            self._release(0)
            self.pool.tables.remove(self)

    def _n_shared(self, first: int, n_blocks: int) -> int:
        """Blocks among these that others refer to: what is written to them goes into copies."""
        return sum(self.pool.n_references(each) > 1 for each in self.blocks[first:n_blocks])

    def _release(self, n_kept: int) -> None:
        for block in self.blocks[n_kept:]:
            self.pool.release(block)
        del self.blocks[n_kept:]


class PagedCache(KVCache):
    """One layer of a sequence in a pool; any length can be cropped to."""

    def __init__(self, table: BlockTable, layer: int) -> None:
        self._table, self._layer = table, layer
        self._room = table.pool.room

    @property
    def length(self) -> int:
        return self._table.length_of(self._layer)

    def tensors(self) -> Iterable[Tensor]:
        return self._table.pool.rows[self._layer]

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        start, n_new = self.length, keys.shape[2]
        check_room(start, n_new, self._room.n_ctx)
        self._table.grow(self._layer, n_new)
        size = self._table.pool.block_size
        at = torch.arange(start, start + n_new, device=self._room.device)
        blocks = self._blocks()[at // size]
        for rows, new in zip(self.tensors(), (keys, values), strict=True):
            rows[blocks, :, :, at % size] = new.permute(2, 0, 1, 3).to(rows.dtype)
        return self.state()

    def state(self) -> KVState:
        blocks, length = self._blocks(), self.length
        keys, values = (
            rows[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length].to(self._room.dtype)
            for rows in self.tensors()
        )
        return KVState(keys, values, torch.arange(length, device=self._room.device))

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self._table.crop(self._layer, length)

    def held(self) -> dict[str, Tensor]:
        state, (rows, _) = self.state(), self.tensors()
        return {
            "paged keys": state.keys.to(rows.dtype),
            "paged values": state.values.to(rows.dtype),
        }

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        check_room(0, length, self._room.n_ctx)
        held = self.held()
        new = {
            name: each.new_empty((*each.shape[:2], length, each.shape[3]))
            for name, each in held.items()
        }
        fill(new, found)
        if length:
            self.update(*new.values())

    def _blocks(self) -> Tensor:
        n_blocks = -(-self.length // self._table.pool.block_size)
        return torch.tensor(self._table.blocks[:n_blocks], device=self._room.device).long()
