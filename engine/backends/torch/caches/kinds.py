"""A model's caches of a kind, as `engine.memory.torch_caches` describes kinds."""

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
    SplitCodec,
    TokenCodec,
)
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.caches.paged import BlockPool, BlockTable
from engine.backends.torch.caches.tiered import TierManager
from engine.backends.torch.caches.windowed import WindowedCache
from engine.errors import ModelLoadError
from engine.memory.torch_caches import (
    DEVICE_SHARE,
    GEOMETRIC,
    HOST_SHARE,
    N_MEAN,
    SEMANTIC,
    STORED,
    KindName,
    TensorKind,
    kind_fault,
    n_pool_blocks,
    slides,
    window_types,
)

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in FLOATS.items()}


def make_caches(
    kind: KindName, layers: Sequence[LayerShape], room: CacheRoom, table: BlockTable | None = None
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
    if kind.is_paged:
        if table is None:
            table = make_pool(layers, room, n_sequences=1).open()
        return [*table.caches()]
    if kind.is_tiered:
        return _tiered(layers, room)
    return [_cache(kind, each, room) for each in layers]


def make_pool(layers: Sequence[LayerShape], room: CacheRoom, *, n_sequences: int) -> BlockPool:
    """The blocks of sequences of `room.n_ctx` tokens each."""
    n_blocks = n_pool_blocks(room.n_ctx, n_sequences)
    return BlockPool(layers, room, n_blocks=n_blocks, dtype=FLOATS[STORED])


def codec_of(kind: TensorKind, head_dim: int) -> Codec:
    """What makes bytes of keys or values."""
    match kind.method:
        case "float":
            return FloatCodec(FLOATS[kind.form], head_dim)
        case "mean":
            return MeanCodec(FLOATS[kind.form], head_dim, N_MEAN)
        case "channel":
            return ChannelCodec(BLOCK_FORMATS[kind.form], head_dim)
        case "split":
            # The model has the pairs of a head in the order of their angles, the quickest first.
            half = head_dim // 2
            halves = (TokenCodec(BLOCK_FORMATS[each], half) for each in (GEOMETRIC, SEMANTIC))
            return SplitCodec(tuple(halves), (half, half))
        case "token":
            return TokenCodec(BLOCK_FORMATS[kind.form], head_dim)


def _cache(kind: KindName, layer: LayerShape, room: CacheRoom) -> KVCache:
    if slides(layer, room.n_ctx, keeps_windows=room.keeps_windows):
        return _sliding(kind, layer, room)
    keys, values = kind.kinds
    if kind.is_dense:
        return DenseCache(layer, room, FLOATS[keys.form], FLOATS[values.form])
    return WindowedCache(
        str(kind),
        layer,
        room,
        (codec_of(keys, layer.k_head_dim), codec_of(values, layer.v_head_dim)),
        n_exact=room.n_exact,
        n_back=room.n_back,
    )


def _sliding(kind: KindName, layer: LayerShape, room: CacheRoom) -> KVCache:
    """The last tokens of a layer with a window."""
    assert layer.window is not None
    type_k, type_v = window_types(kind, NAMES[room.dtype])
    return WindowedCache(
        str(kind),
        layer,
        room,
        (NothingCodec(layer.k_head_dim), NothingCodec(layer.v_head_dim)),
        n_exact=layer.window,
        n_back=room.n_back,
        dtypes=(FLOATS[type_k], FLOATS[type_v]),
    )


def _tiered(layers: Sequence[LayerShape], room: CacheRoom) -> list[KVCache]:
    def maker(layer: LayerShape) -> Callable[[], KVCache]:
        return partial(DenseCache, layer, room, FLOATS[STORED], FLOATS[STORED])

    n_bytes = sum(held_bytes([maker(each)()]) for each in layers)
    manager = TierManager(
        [maker(each) for each in layers],
        Path(tempfile.gettempdir()),
        device_bytes=round(DEVICE_SHARE * n_bytes),
        host_bytes=round(HOST_SHARE * n_bytes),
    )
    return [*manager.caches]
