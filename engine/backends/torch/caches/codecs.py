"""Codecs: the rows of a few tokens as bytes, and the entries that attention reads from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.backends.torch.caches.formats import BlockFormat, ordered_sum
from engine.memory.torch_caches import BLOCK


@dataclass(frozen=True, slots=True)
class Codec:
    """Encodes groups of tokens; the bytes of a group depend only on its rows."""

    group_bytes: int
    """Bytes of a group, including scales."""
    encode: Callable[[Tensor], Tensor]
    """`[batch, heads, n * group, head_dim]` float32 to `[batch, heads, n, group_bytes]` uint8."""
    decode: Callable[[Tensor], Tensor]
    """`[batch, heads, n, group_bytes]` to `[batch, heads, n * n_entries, head_dim]` float32."""
    group: int = 1
    """Tokens that are encoded together."""
    n_entries: int = 1
    """Entries that are read from a group: `group`, or fewer if tokens are merged or dropped."""


def float_codec(dtype: torch.dtype, head_dim: int) -> Codec:
    """A floating type."""
    return Codec(
        head_dim * dtype.itemsize,
        lambda rows: rows.to(dtype).contiguous().view(torch.uint8),
        lambda coded: coded.view(dtype).float(),
    )


def token_codec(form: BlockFormat, head_dim: int) -> Codec:
    """Blocks along a head's row: each token by itself."""
    return Codec(
        head_dim // BLOCK * form.nbytes,
        lambda rows: form.quantise(torch.unflatten(rows, -1, (-1, BLOCK))).flatten(-2),
        lambda coded: form.dequantise(torch.unflatten(coded, -1, (-1, form.nbytes))).flatten(-2),
    )


def channel_codec(form: BlockFormat, head_dim: int) -> Codec:
    """Blocks along a channel, for keys, in which some channels are always large.

    KIVI, Liu et al. 2024, arXiv 2402.02750, section 3.2; values are quantised per token there.
    """

    def encode(rows: Tensor) -> Tensor:
        channels = torch.unflatten(rows, 2, (-1, BLOCK)).transpose(-1, -2).contiguous()
        return form.quantise(channels).flatten(-2)

    def decode(coded: Tensor) -> Tensor:
        channels = form.dequantise(torch.unflatten(coded, -1, (-1, form.nbytes)))
        return channels.transpose(-1, -2).flatten(2, 3)

    return Codec(head_dim * form.nbytes, encode, decode, group=BLOCK, n_entries=BLOCK)


def mean_codec(dtype: torch.dtype, head_dim: int, group: int) -> Codec:
    """The mean of `group` tokens, a power of two; attention weighs it as one token."""
    stored = float_codec(dtype, head_dim)

    def encode(rows: Tensor) -> Tensor:
        chunks = torch.unflatten(rows, 2, (-1, group)).transpose(-1, -2)
        return stored.encode(ordered_sum(chunks).squeeze(-1) / group)

    return replace(stored, encode=encode, group=group)


def split_codec(parts: Sequence[Codec], widths: Sequence[int]) -> Codec:
    """A row in several parts of `widths` elements, each with its own codec of single tokens."""
    n_bytes = [part.group_bytes for part in parts]

    def encode(rows: Tensor) -> Tensor:
        pieces = zip(parts, rows.split_with_sizes([*widths], -1), strict=True)
        return torch.cat([part.encode(piece.contiguous()) for part, piece in pieces], -1)

    def decode(coded: Tensor) -> Tensor:
        pieces = zip(parts, coded.split_with_sizes(n_bytes, -1), strict=True)
        return torch.cat([part.decode(piece.contiguous()) for part, piece in pieces], -1)

    return Codec(sum(n_bytes), encode, decode)


def part_scales(widths: Sequence[int]) -> Tensor:
    """Factors of a query's elements whose score is a sum of products, one for each part of a key.

    In decoupled bottleneck attention, a semantic product without positions and a geometric one with
    rotary positions are each divided by the root of their width: the `scale` of `attend`.
    """
    return torch.cat([torch.full((width,), width**-0.5) for width in widths])


def evicting_codec(head_dim: int) -> Codec:
    """Codec that stores nothing, for tokens that have left a sliding window."""
    return Codec(
        0,
        lambda rows: rows.new_empty((*rows.shape[:3], 0), dtype=torch.uint8),
        lambda coded: coded.new_empty((*coded.shape[:2], 0, head_dim), dtype=torch.float32),
        n_entries=0,
    )
