"""The kinds of cache by name, and a model's caches of a kind."""

from collections.abc import Sequence

import torch

from engine.backends.torch.caches.base import CacheRoom, KVCache, LayerShape
from engine.backends.torch.caches.dense import DenseCache
from engine.errors import ModelLoadError
from engine.quality.records import CacheKind

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def make_caches(kind: CacheKind, layers: Sequence[LayerShape], room: CacheRoom) -> list[KVCache]:
    """An empty cache for each layer of attention.

    Args:
        kind: How keys and values are kept.
        layers: What each layer keeps of a token.
        room: For how many tokens, and where.

    Raises:
        ModelLoadError: a kind that there is none of; the message lists those there are.
    """
    for name in (kind.type_k, kind.type_v):
        if name not in FLOATS:
            raise ModelLoadError(
                f"the torch backend has no cache kind {name!r}: there are {', '.join(FLOATS)}"
            )
    return [DenseCache(each, room, FLOATS[kind.type_k], FLOATS[kind.type_v]) for each in layers]
