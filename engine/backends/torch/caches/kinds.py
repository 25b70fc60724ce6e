"""A model's caches of a kind: who keeps what, by the names in `engine.memory.torch_caches`."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from engine.backends.torch.caches.base import CacheRoom, KVCache, LayerShape, held_bytes
from engine.backends.torch.caches.blocks import BLOCK_FORMATS
from engine.backends.torch.caches.codecs import (
    ChannelCodec,
    Codec,
    FloatCodec,
    MeanCodec,
    NothingCodec,
    RotatedCodec,
    SplitCodec,
    TokenCodec,
)
from engine.backends.torch.caches.dense import DenseCache, StaticCache
from engine.backends.torch.caches.paged import BlockPool, BlockTable
from engine.backends.torch.caches.tiered import TierManager
from engine.backends.torch.caches.windowed import WindowedCache
from engine.errors import ModelLoadError
from engine.memory.torch_caches import (
    CHANNEL,
    DECOUPLED,
    DEVICE_SHARE,
    GEOMETRIC,
    HOST_SHARE,
    KIVI,
    N_MEAN,
    N_SLIDING,
    ROTATED,
    SEMANTIC,
    Kind,
    kind_fault,
    kinds_of,
    n_pool_blocks,
)
from engine.memory.torch_caches import STORED as STORED_NAME

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
STORED = FLOATS[STORED_NAME]


def make_caches(
    kind: Kind, layers: Sequence[LayerShape], room: CacheRoom, table: BlockTable | None = None
) -> list[KVCache]:
    """An empty cache for each layer of attention of a sequence.

    Args:
        kind: How keys and values are kept.
        layers: What each layer keeps of a token.
        room: For how many tokens, and where.
        table: Of the sequence, where its blocks come from a pool that others have too; None makes a
            pool for `paged` alone.

    Raises:
        ModelLoadError: a kind that there is none of (the message lists those there are), that
            cannot be mixed, or that does not fit the heads.
    """
    fault = kind_fault(kind, layers)
    if fault is not None:
        raise ModelLoadError(fault)
    match kind.type_k:
        case "paged":
            if table is None:
                table = make_pool(layers, room, n_sequences=1, is_shared=False).open()
            return [*table.caches()]
        case "tiered":
            return _tiered(layers, room)
        case _:
            kinds = kinds_of(kind, len(layers))
            return [_cache(*each, room) for each in zip(kinds, layers, strict=True)]


def make_pool(
    layers: Sequence[LayerShape], room: CacheRoom, *, n_sequences: int, is_shared: bool
) -> BlockPool:
    """The blocks of so many sequences of `room.n_ctx` tokens each, or of all where they share."""
    n_blocks = n_pool_blocks(room.n_ctx, n_sequences, is_shared=is_shared)
    return BlockPool(layers, room, n_blocks=n_blocks, dtype=STORED)


def codecs_of(kind: Kind, layer: LayerShape) -> tuple[Codec, Codec]:
    """The codecs of a layer's keys and values."""
    keys = KIVI.get(kind.type_k)
    values = SEMANTIC if kind.type_v == DECOUPLED else kind.type_v
    return (
        _codec(kind.type_k if keys is None else CHANNEL + keys, layer.k_head_dim),
        _codec(KIVI.get(values, values), layer.v_head_dim),
    )


def _codec(name: str, head_dim: int) -> Codec:
    if name in FLOATS:
        return FloatCodec(FLOATS[name], head_dim)
    if name == "means":
        return MeanCodec(STORED, head_dim, N_MEAN)
    if name == DECOUPLED:
        # The model has the pairs of a head in the order of their angles, the quickest first.
        half = head_dim // 2
        return SplitCodec((_codec(GEOMETRIC, half), _codec(SEMANTIC, half)), (half, half))
    if name.startswith(CHANNEL):
        return ChannelCodec(BLOCK_FORMATS[name.removeprefix(CHANNEL)], head_dim)
    if name.startswith(ROTATED):
        inner = TokenCodec(BLOCK_FORMATS[name.removeprefix(ROTATED)], head_dim)
        return RotatedCodec(inner, head_dim)
    return TokenCodec(BLOCK_FORMATS[name], head_dim)


def _cache(kind: Kind, layer: LayerShape, room: CacheRoom) -> KVCache:
    if kind.type_k == "static":
        return StaticCache(layer, room, STORED, STORED)
    window = N_SLIDING if kind.type_k == "sliding" else layer.window
    slides = kind.type_k == "sliding" or not room.keeps_windows
    if window is not None and window < room.n_ctx and slides:
        return _sliding(kind, layer, room, window)
    if kind.type_k == "sliding":
        return DenseCache(layer, room, STORED, STORED)
    if kind.type_k in FLOATS and kind.type_v in FLOATS:
        return DenseCache(layer, room, FLOATS[kind.type_k], FLOATS[kind.type_v])
    return WindowedCache(
        _name(kind),
        layer,
        room,
        codecs_of(kind, layer),
        n_exact=room.n_exact,
        n_back=room.n_back,
    )


def _sliding(kind: Kind, layer: LayerShape, room: CacheRoom, window: int) -> KVCache:
    """The last tokens in the kind's floating type; where it has none, in the computation's."""
    dtypes = (FLOATS.get(kind.type_k), FLOATS.get(kind.type_v))
    own = STORED if kind.type_k == "sliding" else room.dtype
    return WindowedCache(
        _name(kind),
        layer,
        room,
        (NothingCodec(layer.k_head_dim), NothingCodec(layer.v_head_dim)),
        n_exact=window,
        n_back=room.n_back,
        dtypes=(dtypes[0] or own, dtypes[1] or own),
    )


def _tiered(layers: Sequence[LayerShape], room: CacheRoom) -> list[KVCache]:
    def maker(layer: LayerShape) -> Callable[[], KVCache]:
        return partial(DenseCache, layer, room, STORED, STORED)

    n_bytes = sum(held_bytes([maker(each)()]) for each in layers)
    manager = TierManager(
        [maker(each) for each in layers],
        Path(tempfile.gettempdir()),
        device_bytes=round(DEVICE_SHARE * n_bytes),
        host_bytes=round(HOST_SHARE * n_bytes),
    )
    return [*manager.caches]


def _name(kind: Kind) -> str:
    return kind.type_k if kind.type_k == kind.type_v else f"{kind.type_k}/{kind.type_v}"
