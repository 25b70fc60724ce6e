"""The caches of a model by the names of their types (`engine.memory.torch_caches`)."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from engine.backends.torch.caches.base import CacheConfig, KVCache, LayerShape, held_bytes
from engine.backends.torch.caches.codecs import (
    Codec,
    channel_codec,
    evicting_codec,
    float_codec,
    mean_codec,
    split_codec,
    token_codec,
)
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.caches.formats import BLOCK_FORMATS
from engine.backends.torch.caches.paged import BlockPool, BlockTable
from engine.backends.torch.caches.tiered import tiered_caches
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
    kind: KindName,
    layers: Sequence[LayerShape],
    config: CacheConfig,
    table: BlockTable | None = None,
) -> list[KVCache]:
    """An empty cache for each attention layer of a sequence.

    Args:
        kind: Cache types of keys and values.
        layers: Shapes of the layers.
        config: Capacity and device.
        table: Blocks of the sequence in a shared pool; None makes a pool for `paged`.

    Raises:
        ModelLoadError: the type is unknown, cannot be mixed, or does not fit the heads.
    """
    fault = kind_fault(kind, layers)
    if fault is not None:
        raise ModelLoadError(fault)
    if kind.is_paged:
        return [*(table or make_pool(layers, config, n_sequences=1).open()).caches()]
    if kind.is_tiered:
        return _tiered(layers, config)
    return [_cache(kind, each, config) for each in layers]


def make_pool(layers: Sequence[LayerShape], config: CacheConfig, *, n_sequences: int) -> BlockPool:
    """The blocks of `n_sequences` sequences of `config.n_ctx` tokens each."""
    n_blocks = n_pool_blocks(config.n_ctx, n_sequences)
    return BlockPool(layers, config, n_blocks=n_blocks, dtype=FLOATS[STORED])


def codec_of(kind: TensorKind, head_dim: int) -> Codec:
    """The codec of keys or values of a type."""
    match kind.method:
        case "float":
            return float_codec(FLOATS[kind.form], head_dim)
        case "mean":
            return mean_codec(FLOATS[kind.form], head_dim, N_MEAN)
        case "channel":
            return channel_codec(BLOCK_FORMATS[kind.form], head_dim)
        case "split":  # the model has the pairs of a head in the order of their angles, fast first
            half = head_dim // 2
            parts = [token_codec(BLOCK_FORMATS[name], half) for name in (GEOMETRIC, SEMANTIC)]
            return split_codec(parts, (half, half))
        case "token":
            return token_codec(BLOCK_FORMATS[kind.form], head_dim)


def _cache(kind: KindName, layer: LayerShape, config: CacheConfig) -> KVCache:
    keys, values = kind.kinds
    if slides(layer, config.n_ctx, keeps_windows=config.keeps_windows):
        assert layer.window is not None
        type_k, type_v = window_types(kind, NAMES[config.dtype])
        codecs = evicting_codec(layer.k_head_dim), evicting_codec(layer.v_head_dim)
        dtypes = FLOATS[type_k], FLOATS[type_v]
        return WindowedCache(str(kind), layer, config, codecs, n_exact=layer.window, dtypes=dtypes)
    if kind.is_dense:
        return DenseCache(layer, config, FLOATS[keys.form], FLOATS[values.form])
    codecs = codec_of(keys, layer.k_head_dim), codec_of(values, layer.v_head_dim)
    return WindowedCache(str(kind), layer, config, codecs, n_exact=config.n_exact)


def _tiered(layers: Sequence[LayerShape], config: CacheConfig) -> list[KVCache]:
    dtype = FLOATS[STORED]
    makes = [partial(DenseCache, each, config, dtype, dtype) for each in layers]
    n_bytes = sum(held_bytes([make()]) for make in makes)
    return [
        *tiered_caches(
            makes,
            Path(tempfile.gettempdir()),
            device_bytes=round(DEVICE_SHARE * n_bytes),
            host_bytes=round(HOST_SHARE * n_bytes),
        )
    ]
