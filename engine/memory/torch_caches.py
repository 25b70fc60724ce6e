"""The kinds of cache that the torch backend has: their names, and the bytes that each allocates.

No torch is needed for it: a plan is made where torch is not installed. A test holds each number
against the tensors of the caches themselves.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.configuration import KV_CACHE

FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
BLOCK = 32
"""Numbers of a block."""
BLOCK_BYTES = {
    "q8_0": 34, "fp8": 34, "q4_1": 20, "q4_0": 18, "nf4": 18, "q3": 14, "q2_1": 12,
}  # fmt: skip
"""Of `BLOCK` numbers, scales among them; `fp8` is E4M3 with a bfloat16 scale, `q2_1` is `q4_1` with
two bits."""
KIVI = {"kivi4": "q4_1", "kivi2": "q2_1"}
"""Keys by channel and values by token, with 4 or 2 bits."""
DECOUPLED = "decoupled"
GEOMETRIC, SEMANTIC = "q8_0", "q4_0"
"""Of the halves of a decoupled key: pairs that turn quickly, and those that hardly turn. Values are
as the second half."""
ROTATED, CHANNEL = "rotated_", "channel_"
TENSOR_KINDS = (
    *FLOAT_BYTES, *BLOCK_BYTES, *(ROTATED + name for name in BLOCK_BYTES),
    *(CHANNEL + name for name in BLOCK_BYTES), *KIVI, DECOUPLED,
)  # fmt: skip
"""What keys or values may be kept in, each by itself."""
WHOLE_KINDS = ("static", "sliding", "paged", "tiered", "means")
"""Kinds of whole caches, keys and values alike; `sliding` forgets tokens, `means` merges them."""
POOLED_KINDS = {"paged", "tiered"}
"""Those whose layers share what they have."""
STORED = "f16"
"""In which kinds without a type of their own keep rows: llama.cpp's default."""

N_EXACT = 64
"""Tokens that a query sees as they were computed, where older ones are coded. KIVI's residual is
128 (Liu et al. 2024, arXiv 2402.02750, table 3); half of it in float32 takes as much as all of it
in float16."""
N_BACK = 64
"""Tokens that can be rolled back; the longest draft is shorter (`MAX_DRAFT`)."""
N_MEAN = 4
"""Tokens of a mean. zerfoo takes 64, of which a text loses nearly everything."""
N_SLIDING = 1024
"""Tokens that `sliding` leaves a layer whose model sees all."""
PAGE = 16
"""Tokens of a block of `paged`: vLLM's default."""
DEVICE_SHARE, HOST_SHARE = 0.5, 0.25
"""Of the layers' bytes, which `tiered` leaves on the device and in memory; others are on disk."""


class Kind(Protocol):
    """Of keys and of values, such as `engine.configuration.KVTypes`."""

    @property
    def type_k(self) -> str: ...

    @property
    def type_v(self) -> str: ...


class KindName(NamedTuple):
    """Of keys and of values, and what the first layers have instead."""

    type_k: str
    type_v: str
    n_first: int = 0
    first: str = ""
    """Kind of the keys and values of the first `n_first` layers."""

    def __str__(self) -> str:
        first = f"{self.n_first}x{self.first}+" if self.n_first else ""
        same = self.type_k == self.type_v
        return first + (self.type_k if same else f"{self.type_k}/{self.type_v}")


class KeptLayer(Protocol):
    """What a layer of attention keeps of a token."""

    @property
    def n_kv_heads(self) -> int: ...

    @property
    def k_head_dim(self) -> int: ...

    @property
    def v_head_dim(self) -> int: ...

    @property
    def window(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class CacheSpan:
    """For how much caches are made."""

    n_ctx: int
    """Most tokens of a sequence, or of all where they share one pool."""
    computed: str
    """Type that attention computes in."""
    n_sequences: int = 1
    keeps_windows: bool = False
    """Whether layers with a sliding window keep whole lines."""
    is_shared: bool = False
    """Whether `paged` sequences take their blocks from one pool of `n_ctx` tokens."""


def kind_named(kv_cache: str | None, type_k: str, type_v: str, computed: str) -> KindName:
    """The kind that a configuration names.

    Without a name it is the cache's types; f16, which is what configurations have where nothing
    was asked, is then the type of the computation: converting rows at every step costs more time
    than half of the bytes saves.
    """
    if kv_cache is not None:
        if re.fullmatch(KV_CACHE, kv_cache) is None:
            return KindName(kv_cache, kv_cache)  # there is none of that name
        first, _, rest = kv_cache.rpartition("+")
        n_first, _, name = first.partition("x")
        name_k, _, name_v = rest.partition("/")
        return KindName(name_k, name_v or name_k, int(n_first or 0), name)
    if type_k == type_v == STORED:
        return KindName(computed, computed)
    return KindName(type_k, type_v)


def kinds_of(kind: Kind, n_layers: int) -> list[Kind]:
    """The kind of each layer."""
    if not isinstance(kind, KindName) or not kind.n_first:
        return [kind] * n_layers
    first, rest = KindName(kind.first, kind.first), KindName(kind.type_k, kind.type_v)
    return [first if number < kind.n_first else rest for number in range(n_layers)]


def kind_fault(kind: Kind, layers: Sequence[KeptLayer]) -> str | None:
    """Why there is no such kind, or why the layers cannot have it."""
    if isinstance(kind, KindName) and kind.n_first >= max(1, len(layers)):
        return f"{kind} is of the first {kind.n_first} layers, and there are {len(layers)} in all"
    kinds = kinds_of(kind, len(layers))
    if len(set(kinds)) == 1:
        return _fault(kinds[0], layers)
    whole = {each.type_k for each in kinds} & POOLED_KINDS
    if whole:
        return f"the cache kind {min(whole)!r} is one of all layers together: {kind} cannot be"
    faults = (_fault(each, [layer]) for each, layer in zip(kinds, layers, strict=True))
    return next(filter(None, faults), None)


def _fault(kind: Kind, layers: Sequence[KeptLayer]) -> str | None:
    for name in (kind.type_k, kind.type_v):
        if name not in (*TENSOR_KINDS, *WHOLE_KINDS):
            names = (*FLOAT_BYTES, *BLOCK_BYTES, *KIVI, DECOUPLED, *WHOLE_KINDS)
            return (
                f"the torch backend has no cache kind {name!r}: there are {', '.join(names)}; "
                f"{ROTATED} or {CHANNEL} before a quantised one ({ROTATED}q4_0)"
            )
        if name in WHOLE_KINDS and kind.type_k != kind.type_v:
            return (
                f"the cache kind {name!r} is one of keys and values together: {kind.type_k}/"
                f"{kind.type_v} cannot be"
            )
    for name, dims, size in (
        (kind.type_k, {each.k_head_dim for each in layers}, _key_size(kind.type_k)),
        (kind.type_v, {each.v_head_dim for each in layers}, BLOCK),
    ):
        if name in (*FLOAT_BYTES, *WHOLE_KINDS) or name.startswith(CHANNEL):
            continue
        odd = next((dim for dim in dims if dim % size), None)
        if odd is not None:
            return (
                f"{name} has blocks of {size} elements and a head of this model has {odd}: choose "
                f"one of {', '.join((*FLOAT_BYTES, *WHOLE_KINDS))}"
            )
    return None


def token_bytes(kind: Kind, layers: Sequence[KeptLayer]) -> float:
    """Bytes that one more token takes in all layers, scales among them.

    Beside them a quantised cache holds the last tokens as they were computed, and a sliding layer
    nothing else.
    """
    kinds = kinds_of(kind, len(layers))
    return sum(_token_bytes(*each) for each in zip(kinds, layers, strict=True))


def cache_bytes(kind: Kind, layers: Sequence[KeptLayer], span: CacheSpan) -> int:
    """Bytes that the caches of all sequences allocate on the device.

    Of `tiered` it is the share that stays there; what it moves to main memory is less than half of
    that (`HOST_SHARE`).
    """
    if kind.type_k == "paged":
        return round(_pool_blocks(span) * PAGE * token_bytes(kind, layers))
    kinds = kinds_of(kind, len(layers))
    nbytes = sum(_layer_bytes(*each, span) for each in zip(kinds, layers, strict=True))
    if kind.type_k == "tiered":
        nbytes = round(nbytes * DEVICE_SHARE)
    return nbytes * span.n_sequences


def read_bytes(kind: Kind, layers: Sequence[KeptLayer], span: CacheSpan) -> int:
    """Bytes that the entries of one layer take while attention reads them.

    None where they lie in the computation's type already: attention reads a view.
    """
    widths = (
        layer.n_kv_heads * (layer.k_head_dim + layer.v_head_dim)
        for each, layer in zip(kinds_of(kind, len(layers)), layers, strict=True)
        if not each.type_k == each.type_v == span.computed
    )
    return max(widths, default=0) * span.n_ctx * FLOAT_BYTES[span.computed]


def n_pool_blocks(n_ctx: int, n_sequences: int, *, is_shared: bool) -> int:
    """Blocks of one pool for all sequences of `n_ctx` tokens each, or of all where they share.

    Lines that share end in the middle of a block each, so there is one more for each of them.
    """
    n_blocks = -(-n_ctx // PAGE)
    return n_blocks + n_sequences if is_shared else n_blocks * n_sequences


def _key_size(name: str) -> int:
    """What a key's head must be a multiple of: both halves of a decoupled one have blocks."""
    return 2 * BLOCK if name == DECOUPLED else BLOCK


def _pool_blocks(span: CacheSpan) -> int:
    return n_pool_blocks(span.n_ctx, span.n_sequences, is_shared=span.is_shared)


def _token_bytes(kind: Kind, layer: KeptLayer) -> float:
    """Bytes that a token takes in one layer."""
    keys = layer.k_head_dim * _number_bytes(kind.type_k, is_key=True)
    values = layer.v_head_dim * _number_bytes(kind.type_v, is_key=False)
    return layer.n_kv_heads * (keys + values)


def _layer_bytes(kind: Kind, layer: KeptLayer, span: CacheSpan) -> int:
    """Bytes of one layer of one sequence."""
    is_sliding = kind.type_k == "sliding"
    window = N_SLIDING if is_sliding else layer.window
    if kind.type_k == "static":
        return round(_token_bytes(kind, layer) * span.n_ctx)
    slides = is_sliding or not span.keeps_windows
    if kind.type_k != "tiered" and window is not None and window < span.n_ctx and slides:
        own = FLOAT_BYTES[STORED if is_sliding else span.computed]
        types = [FLOAT_BYTES.get(name, own) for name in (kind.type_k, kind.type_v)]
        return _rows(layer, types) * min(window + N_BACK, span.n_ctx)
    is_dense = {kind.type_k, kind.type_v} <= FLOAT_BYTES.keys()
    if is_dense or kind.type_k in ("sliding", "tiered"):
        return round(_token_bytes(kind, layer) * span.n_ctx)
    group = math.lcm(_group(kind.type_k, is_key=True), _group(kind.type_v, is_key=False))
    n_coded = max(0, span.n_ctx - N_EXACT) // group * group
    n_tail = min(N_EXACT + N_BACK + group - 1, span.n_ctx)
    tail = _rows(layer, [FLOAT_BYTES[span.computed]] * 2) * n_tail
    return round(_token_bytes(kind, layer) * n_coded) + tail


def _rows(layer: KeptLayer, sizes: Sequence[int]) -> int:
    """Bytes of a token whose keys and values have numbers of these sizes."""
    return layer.n_kv_heads * (layer.k_head_dim * sizes[0] + layer.v_head_dim * sizes[1])


def _number_bytes(name: str, *, is_key: bool) -> float:
    """Bytes of one number, with its part of the scales."""
    if name == DECOUPLED:
        halves = (GEOMETRIC, SEMANTIC) if is_key else (SEMANTIC, SEMANTIC)
        return sum(BLOCK_BYTES[half] for half in halves) / (2 * BLOCK)
    if name == "means":
        return FLOAT_BYTES[STORED] / N_MEAN
    if name in WHOLE_KINDS:
        return FLOAT_BYTES[STORED]
    if name in FLOAT_BYTES:
        return FLOAT_BYTES[name]
    plain = KIVI.get(name, name).removeprefix(ROTATED).removeprefix(CHANNEL)
    return BLOCK_BYTES[plain] / BLOCK


def _group(name: str, *, is_key: bool) -> int:
    """Tokens that are coded together."""
    if name == "means":
        return N_MEAN
    return BLOCK if name.startswith(CHANNEL) or (name in KIVI and is_key) else 1
