"""The kinds of cache by name, and a model's caches of a kind."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from engine.backends.torch.caches.base import CacheRoom, KVCache, LayerShape
from engine.backends.torch.caches.blocks import BLOCK_FORMATS, SIZE
from engine.backends.torch.caches.codecs import (
    ChannelCodec,
    Codec,
    FloatCodec,
    MeanCodec,
    NothingCodec,
    RotatedCodec,
    TokenCodec,
)
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.caches.paged import BLOCK_SIZE, BlockPool
from engine.backends.torch.caches.static import StaticCache
from engine.backends.torch.caches.tiered import TierManager
from engine.backends.torch.caches.windowed import WindowedCache
from engine.configuration import Configuration
from engine.errors import ModelLoadError
from engine.quality.records import CacheKind

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
KIVI = {"kivi4": "q4_1", "kivi2": "q2_1"}
"""Keys by channel and values by token, with 4 or 2 bits."""
ROTATED, CHANNEL = "rotated_", "channel_"
N_MEAN = 4
"""Tokens of a mean. zerfoo takes 64, of which a text loses nearly everything."""
N_SLIDING = 1024
"""Tokens that `sliding` leaves a layer whose model sees all."""
POSITION_BYTES = 8
"""Of an entry of `static`, which says where it stands."""
STORED = torch.float16
"""In which kinds without a type of their own keep rows: llama.cpp's default."""
DEVICE_SHARE, HOST_SHARE = 0.5, 0.25
"""Of the layers' bytes, which `tiered` leaves on the device and in memory; others are on disk."""

TENSOR_KINDS = (
    *FLOATS, *BLOCK_FORMATS, *(ROTATED + name for name in BLOCK_FORMATS),
    *(CHANNEL + name for name in BLOCK_FORMATS), *KIVI,
)  # fmt: skip
"""What keys or values may be kept in, each by itself."""
WHOLE_KINDS = ("static", "sliding", "paged", "tiered", "means")
"""Kinds of whole caches, keys and values alike; `sliding` forgets tokens, `means` merges them."""


def kind_of(configuration: Configuration) -> CacheKind:
    """The kind that a configuration names."""
    if configuration.kv_cache is None:
        return CacheKind(configuration.type_k, configuration.type_v)
    type_k, _, type_v = configuration.kv_cache.partition("/")
    return CacheKind(type_k, type_v or type_k)


def make_caches(kind: CacheKind, layers: Sequence[LayerShape], room: CacheRoom) -> list[KVCache]:
    """An empty cache for each layer of attention.

    Args:
        kind: How keys and values are kept.
        layers: What each layer keeps of a token.
        room: For how many tokens, and where.

    Raises:
        ModelLoadError: a kind that there is none of (the message lists those there are), that
            cannot be mixed, or that does not fit the heads.
    """
    check_kind(kind, layers)
    match kind.type_k:
        case "paged":
            n_blocks = -(-room.n_ctx // BLOCK_SIZE)
            pool = BlockPool(layers, room, n_blocks=n_blocks, dtype=STORED)
            return [*pool.open().caches()]
        case "tiered":
            return _tiered(layers, room)
        case _:
            return [_cache(kind, each, room) for each in layers]


def check_kind(kind: CacheKind, layers: Sequence[LayerShape]) -> None:
    """Raise `ModelLoadError` for a kind that does not exist or that the layers cannot have."""
    for name in (kind.type_k, kind.type_v):
        if name not in (*TENSOR_KINDS, *WHOLE_KINDS):
            raise ModelLoadError(
                f"the torch backend has no cache kind {name!r}: there are "
                f"{', '.join((*FLOATS, *BLOCK_FORMATS, *KIVI, *WHOLE_KINDS))}; {ROTATED} or "
                f"{CHANNEL} before a quantised one ({ROTATED}q4_0)"
            )
        if name in WHOLE_KINDS and kind.type_k != kind.type_v:
            raise ModelLoadError(
                f"the cache kind {name!r} is one of keys and values together: {kind} cannot be"
            )
    for name, dims in (
        (kind.type_k, {each.k_head_dim for each in layers}),
        (kind.type_v, {each.v_head_dim for each in layers}),
    ):
        odd = next((dim for dim in dims if dim % SIZE), None)
        if odd is not None and name not in (*FLOATS, *WHOLE_KINDS) and not name.startswith(CHANNEL):
            raise ModelLoadError(
                f"{name} has blocks of {SIZE} elements and a head of this model has {odd}: choose "
                f"one of {', '.join((*FLOATS, *WHOLE_KINDS))}"
            )


def token_bytes(kind: CacheKind, layers: Sequence[LayerShape]) -> float:
    """Bytes that one more token takes in all layers, scales among them: what theory says.

    Beside them a cache holds its window (`WindowedCache`), and a sliding layer nothing else.
    """
    positions = POSITION_BYTES * len(layers) if kind.type_k == "static" else 0
    if kind.type_k in WHOLE_KINDS and kind.type_k != "means":
        kind = CacheKind("f16", "f16")
    return positions + sum(
        each.n_kv_heads * (keys.group_bytes / keys.group + values.group_bytes / values.group)
        for each in layers
        for keys, values in (codecs_of(kind, each),)
    )


def read_bytes(kind: CacheKind, layers: Sequence[LayerShape], room: CacheRoom) -> int:
    """Bytes that the entries of one layer take while attention reads them.

    None where they lie in the computation's type already: attention reads a view.
    """
    if {FLOATS.get(kind.type_k), FLOATS.get(kind.type_v)} == {room.dtype}:
        return 0
    widest = max(each.n_kv_heads * (each.k_head_dim + each.v_head_dim) for each in layers)
    return widest * room.n_ctx * room.n_batch * room.dtype.itemsize


def codecs_of(kind: CacheKind, layer: LayerShape) -> tuple[Codec, Codec]:
    """The codecs of a layer's keys and values."""
    keys = KIVI.get(kind.type_k)
    return (
        _codec(kind.type_k if keys is None else CHANNEL + keys, layer.k_head_dim),
        _codec(KIVI.get(kind.type_v, kind.type_v), layer.v_head_dim),
    )


def _codec(name: str, head_dim: int) -> Codec:
    if name in FLOATS:
        return FloatCodec(FLOATS[name], head_dim)
    if name == "means":
        return MeanCodec(STORED, head_dim, N_MEAN)
    if name.startswith(CHANNEL):
        return ChannelCodec(BLOCK_FORMATS[name.removeprefix(CHANNEL)], head_dim)
    if name.startswith(ROTATED):
        inner = TokenCodec(BLOCK_FORMATS[name.removeprefix(ROTATED)], head_dim)
        return RotatedCodec(inner, head_dim)
    return TokenCodec(BLOCK_FORMATS[name], head_dim)


def _cache(kind: CacheKind, layer: LayerShape, room: CacheRoom) -> KVCache:
    if kind.type_k == "static":
        return StaticCache(layer, room, STORED, STORED)
    window = N_SLIDING if kind.type_k == "sliding" else layer.window
    slides = kind.type_k == "sliding" or not room.keeps_windows
    if window is not None and window < room.n_ctx and slides:
        return _sliding(kind, layer, room, window)
    if kind.type_k == "sliding":
        kind = CacheKind("f16", "f16")
    if kind.type_k in FLOATS and kind.type_v in FLOATS:
        return DenseCache(layer, room, FLOATS[kind.type_k], FLOATS[kind.type_v])
    return WindowedCache(
        str(kind),
        layer,
        room,
        codecs_of(kind, layer),
        n_exact=room.n_exact,
        n_back=room.n_back,
    )


def _sliding(kind: CacheKind, layer: LayerShape, room: CacheRoom, window: int) -> KVCache:
    """The last tokens in the kind's floating type; where it has none, in the computation's."""
    dtypes = (FLOATS.get(kind.type_k), FLOATS.get(kind.type_v))
    own = STORED if kind.type_k == "sliding" else room.dtype
    return WindowedCache(
        str(kind),
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

    n_bytes = sum(maker(each)().nbytes for each in layers)
    manager = TierManager(
        [maker(each) for each in layers],
        Path(tempfile.gettempdir()),
        device_bytes=round(DEVICE_SHARE * n_bytes),
        host_bytes=round(HOST_SHARE * n_bytes),
    )
    return [*manager.caches]
