"""Keys in two parts, what a token is and where it stands, each of a size and type of its own.

Decoupled bottleneck attention: the score of a query is the sum of a semantic product without
positions and a geometric one with rotary positions, each over the root of its own width. It is
`attend` with the scales that `DecoupledShape.scales` gives; the kind `decoupled` keeps the keys of
usual models in two parts, which have one scale.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backends.torch.caches.base import CacheRoom, LayerShape
from engine.backends.torch.caches.codecs import Codec, SplitCodec
from engine.backends.torch.caches.windowed import WindowedCache


@dataclass(frozen=True, slots=True)
class DecoupledShape:
    """What a layer keeps of a token."""

    n_kv_heads: int
    semantic_dim: int
    geometric_dim: int
    v_head_dim: int

    def scales(self) -> Tensor:
        """What each element of a query is multiplied by, `[semantic_dim + geometric_dim]`."""
        dims = (self.semantic_dim, self.geometric_dim)
        return torch.cat([torch.full((dim,), dim**-0.5) for dim in dims])

    def layer(self) -> LayerShape:
        """The layer as a cache sees it: both parts of a key side by side."""
        return LayerShape(self.n_kv_heads, self.semantic_dim + self.geometric_dim, self.v_head_dim)


@dataclass(frozen=True, slots=True)
class DecoupledCodecs:
    """How each part is kept; keys are coded token by token."""

    semantic: Codec
    geometric: Codec
    values: Codec


def decoupled_cache(
    shape: DecoupledShape, room: CacheRoom, codecs: DecoupledCodecs, *, n_exact: int, n_back: int
) -> WindowedCache:
    """A cache of keys in two parts, which `decoupled_keys` puts side by side."""
    widths = (shape.semantic_dim, shape.geometric_dim)
    keys = SplitCodec((codecs.semantic, codecs.geometric), widths)
    return WindowedCache(
        "decoupled",
        shape.layer(),
        room,
        (keys, codecs.values),
        n_exact=n_exact,
        n_back=n_back,
    )


def decoupled_keys(semantic: Tensor, geometric: Tensor) -> Tensor:
    """`[batch, heads, n, semantic_dim + geometric_dim]`, as the cache takes them."""
    return torch.cat((semantic, geometric), -1)
