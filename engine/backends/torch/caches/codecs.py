"""How the rows of a few tokens become bytes, and what attention reads of them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.backends.torch.caches.blocks import BlockFormat, halved_sum
from engine.memory.torch_caches import BLOCK


class Codec(Protocol):
    """Groups of tokens to bytes and back; a group's bytes depend on nothing but its rows."""

    @property
    def group(self) -> int:
        """Tokens that are coded together."""
        ...

    @property
    def n_entries(self) -> int:
        """Entries that a group is read as: `group`, or fewer where tokens are merged."""
        ...

    @property
    def group_bytes(self) -> int:
        """Bytes of a group, scales among them."""
        ...

    def encode(self, rows: Tensor) -> Tensor:
        """`[batch, heads, n * group, head_dim]` float32 to `[batch, heads, n, group_bytes]`."""
        ...

    def decode(self, coded: Tensor) -> Tensor:
        """`[batch, heads, n, group_bytes]` to `[batch, heads, n * n_entries, head_dim]` float32."""
        ...


@dataclass(frozen=True, slots=True)
class FloatCodec:
    """A floating type."""

    dtype: torch.dtype
    head_dim: int
    group: int = 1
    n_entries: int = 1

    @property
    def group_bytes(self) -> int:
        return self.head_dim * self.dtype.itemsize

    def encode(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype).contiguous().view(torch.uint8)

    def decode(self, coded: Tensor) -> Tensor:
        return coded.view(self.dtype).float()


@dataclass(frozen=True, slots=True)
class TokenCodec:
    """Blocks along a head's row: each token by itself."""

    form: BlockFormat
    head_dim: int
    group: int = 1
    n_entries: int = 1

    @property
    def group_bytes(self) -> int:
        return self.head_dim // BLOCK * self.form.nbytes

    def encode(self, rows: Tensor) -> Tensor:
        return self.form.quantise(torch.unflatten(rows, -1, (-1, BLOCK))).flatten(-2)

    def decode(self, coded: Tensor) -> Tensor:
        return self.form.dequantise(torch.unflatten(coded, -1, (-1, self.form.nbytes))).flatten(-2)


@dataclass(frozen=True, slots=True)
class ChannelCodec:
    """Blocks along a channel of `BLOCK` tokens, because keys have channels that are always large.

    KIVI, Liu et al. 2024, arXiv 2402.02750, section 3.2; values are coded by token there.
    """

    form: BlockFormat
    head_dim: int
    group: int = BLOCK
    n_entries: int = BLOCK

    @property
    def group_bytes(self) -> int:
        return self.head_dim * self.form.nbytes

    def encode(self, rows: Tensor) -> Tensor:
        channels = torch.unflatten(rows, 2, (-1, BLOCK)).transpose(-1, -2).contiguous()
        return self.form.quantise(channels).flatten(-2)

    def decode(self, coded: Tensor) -> Tensor:
        channels = self.form.dequantise(torch.unflatten(coded, -1, (-1, self.form.nbytes)))
        return channels.transpose(-1, -2).flatten(2, 3)


@dataclass(frozen=True, slots=True)
class MeanCodec(FloatCodec):
    """The mean of `group` tokens, a power of two, instead of them: nothing brings them back.

    The mean of rotated keys has no position of its own, and attention weighs it as one token.
    """

    def encode(self, rows: Tensor) -> Tensor:
        chunks = torch.unflatten(rows, 2, (-1, self.group)).transpose(-1, -2)
        return FloatCodec.encode(self, halved_sum(chunks).squeeze(-1) / self.group)


@dataclass(frozen=True, slots=True)
class NothingCodec:
    """Tokens that are dropped: what a sliding window leaves behind."""

    head_dim: int
    group: int = 1
    n_entries: int = 0
    group_bytes: int = 0

    def encode(self, rows: Tensor) -> Tensor:
        return rows.new_empty((*rows.shape[:3], 0), dtype=torch.uint8)

    def decode(self, coded: Tensor) -> Tensor:
        return coded.new_empty((*coded.shape[:2], 0, self.head_dim), dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class SplitCodec:
    """A row in parts, each with a codec of its own that codes tokens one by one."""

    parts: tuple[Codec, ...]
    widths: tuple[int, ...]
    """Elements of each part."""
    group: int = 1
    n_entries: int = 1

    @property
    def group_bytes(self) -> int:
        return sum(part.group_bytes for part in self.parts)

    def scales(self) -> Tensor:
        """What each element of a query is multiplied by where each part has a product of its own.

        In decoupled bottleneck attention the score is the sum of a semantic product without
        positions and a geometric one with rotary positions, each over the root of its width:
        `attend` takes these scales. The kind `decoupled` has keys of usual models in two parts,
        which have one scale.
        """
        return torch.cat([torch.full((width,), width**-0.5) for width in self.widths])

    def encode(self, rows: Tensor) -> Tensor:
        pieces = zip(self.parts, torch.split_with_sizes(rows, self.widths, -1), strict=True)
        return torch.cat([part.encode(piece.contiguous()) for part, piece in pieces], -1)

    def decode(self, coded: Tensor) -> Tensor:
        widths = [part.group_bytes for part in self.parts]
        pieces = zip(self.parts, torch.split_with_sizes(coded, widths, -1), strict=True)
        return torch.cat([part.decode(piece.contiguous()) for part, piece in pieces], -1)
