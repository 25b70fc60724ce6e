"""Blocks of a shared pool, allocated as a sequence grows.

A block has rows of all layers for `block_size` tokens; a block table lists the blocks of a sequence
in order. Forks share blocks and copy them on write. PagedAttention, Kwon et al. 2023, arXiv
2309.06180, sections 4.1 to 4.4.
"""

from collections.abc import Iterable, Mapping, Sequence

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
from engine.backends.torch.caches.saved import fill
from engine.errors import ContextFullError
from engine.memory.torch_caches import PAGE


class BlockPool:
    """A fixed number of reference-counted blocks.

    Args:
        layers: Shapes of the layers.
        config: Device, and sequences per tensor.
        n_blocks: Number of blocks.
        dtype: Type of keys and values.
        block_size: Tokens of a block.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        config: CacheConfig,
        *,
        n_blocks: int,
        dtype: torch.dtype,
        block_size: int = PAGE,
    ) -> None:
        self.block_size, self.n_blocks, self.config = block_size, n_blocks, config
        self.rows = [
            tuple(
                torch.empty(
                    (n_blocks, config.n_batch, each.n_kv_heads, block_size, head_dim),
                    dtype=dtype,
                    device=config.device,
                )
                for head_dim in (each.k_head_dim, each.v_head_dim)
            )
            for each in layers
        ]
        """Keys and values per layer, `[n_blocks, batch, heads, block_size, head_dim]`."""
        self._n_references = [0] * n_blocks
        self._free = list(reversed(range(n_blocks)))
        self.tables: list[BlockTable] = []
        """Tables of the open sequences."""

    @property
    def n_free(self) -> int:
        return len(self._free)

    def open(self) -> "BlockTable":
        """Open a sequence without blocks."""
        table = BlockTable(self)
        self.tables.append(table)
        return table

    def allocate(self) -> int:
        """Return a free block with one reference; `BlockTable.grow` checks that there is one."""
        block = self._free.pop()
        self._n_references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Increment the reference count of a block."""
        self._n_references[block] += 1

    def release(self, block: int) -> None:
        """Decrement the reference count; free the block at zero."""
        self._n_references[block] -= 1
        if not self._n_references[block]:
            self._free.append(block)

    def n_references(self, block: int) -> int:
        return self._n_references[block]

    def copy_block(self, block: int) -> int:
        """Copy a shared block and release it; return the copy."""
        own = self.allocate()
        for layer in self.rows:
            for rows in layer:
                rows[own] = rows[block]
        self.release(block)
        return own

    def fragmentation(self) -> float:
        """Share of unused rows in allocated blocks; shared blocks count once."""
        filled: dict[int, int] = {}
        for table in self.tables:
            for index, block in enumerate(table.blocks):
                n_rows = min(self.block_size, table.length - index * self.block_size)
                filled[block] = max(filled.get(block, 0), n_rows)
        n_rows = len(filled) * self.block_size
        return 1 - sum(filled.values()) / n_rows if n_rows else 0.0


class BlockTable:
    """The blocks of one sequence, shared by its layers; open one with `BlockPool.open`."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.blocks: list[int] = []
        self.lengths = [0] * len(pool.rows)
        """Tokens per layer; within a forward pass they differ."""

    @property
    def length(self) -> int:
        return max(self.lengths, default=0)

    def caches(self) -> list["PagedCache"]:
        """A cache for each layer."""
        return [PagedCache(self, layer) for layer in range(len(self.pool.rows))]

    def fork(self, length: int) -> "BlockTable":
        """Open a sequence with the same first `length` tokens, sharing their blocks."""
        other = self.pool.open()
        other.blocks = self.blocks[: self._n_blocks(length)]
        for block in other.blocks:
            self.pool.share(block)
        other.lengths = [length] * len(self.lengths)
        return other

    def grow(self, layer: int, n_new: int) -> None:
        """Allocate own blocks for the next tokens of a layer; all of them, or none."""
        pool, start = self.pool, self.lengths[layer]
        first, n_blocks = start // pool.block_size, self._n_blocks(start + n_new)
        n_missing = max(0, n_blocks - len(self.blocks))
        shared = [
            index
            for index in range(first, min(n_blocks, len(self.blocks)))
            if pool.n_references(self.blocks[index]) > 1
        ]
        n_needed = n_missing + len(shared)
        if n_needed > pool.n_free:
            raise ContextFullError(
                f"{n_new} tokens need {n_needed} blocks of {pool.block_size} tokens, but only "
                f"{pool.n_free} of {pool.n_blocks} are free: close a sequence, or enlarge the pool"
            )
        for index in shared:
            self.blocks[index] = pool.copy_block(self.blocks[index])
        self.blocks += [pool.allocate() for _ in range(n_missing)]
        self.lengths[layer] = start + n_new

    def crop(self, layer: int, length: int) -> None:
        """Truncate a layer; release blocks that no layer needs."""
        self.lengths[layer] = length
        self._release(self._n_blocks(self.length))

    def close(self) -> None:
        """Release all blocks; a second call does nothing."""
        if self in self.pool.tables:
            self.lengths = [0] * len(self.lengths)
            self._release(0)
            self.pool.tables.remove(self)

    def _n_blocks(self, n_tokens: int) -> int:
        return -(-n_tokens // self.pool.block_size)

    def _release(self, n_left: int) -> None:
        for block in self.blocks[n_left:]:
            self.pool.release(block)
        del self.blocks[n_left:]


class PagedCache(KVCache):
    """One layer of a sequence in a pool; it can be cropped to any length."""

    def __init__(self, table: BlockTable, layer: int) -> None:
        self._table, self._layer = table, layer
        self._config, self._size = table.pool.config, table.pool.block_size

    @property
    def length(self) -> int:
        return self._table.lengths[self._layer]

    def tensors(self) -> Iterable[Tensor]:
        return self._table.pool.rows[self._layer]

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        start, n_new = self.length, keys.shape[2]
        check_capacity(start, n_new, self._config.n_ctx)
        self._table.grow(self._layer, n_new)
        at = torch.arange(start, start + n_new, device=self._config.device)
        blocks = self._blocks()[at // self._size]
        for rows, new in zip(self.tensors(), (keys, values), strict=True):
            rows[blocks, :, :, at % self._size] = new.permute(2, 0, 1, 3).to(rows.dtype)
        return self.state()

    def state(self) -> KVState:
        keys, values = (each.to(self._config.dtype) for each in self.held().values())
        return KVState(keys, values, torch.arange(self.length, device=self._config.device))

    def crop(self, length: int) -> None:
        check_crop(self, length)
        self._table.crop(self._layer, length)

    def held(self) -> dict[str, Tensor]:
        blocks, length = self._blocks(), self.length
        keys, values = (
            rows[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
            for rows in self.tensors()
        )
        return {"paged keys": keys, "paged values": values}

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        check_capacity(0, length, self._config.n_ctx)
        new = {
            name: each.new_empty((*each.shape[:2], length, each.shape[3]))
            for name, each in self.held().items()
        }
        fill(new, found)
        if length:
            self.update(*new.values())

    def _blocks(self) -> Tensor:
        n_blocks = -(-self.length // self._size)
        return torch.tensor(self._table.blocks[:n_blocks], device=self._config.device).long()
