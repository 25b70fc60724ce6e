"""Memory that a configuration needs on the torch backend, by the types of weights and cache.

No torch is needed for it: a plan is made where torch is not installed. Weights and caches are
exact, and a test holds each number against the tensors themselves; what a forward takes beside them
is an estimate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Literal, Protocol

from engine.configuration import MAX_DRAFT, Configuration, KVTypes
from engine.errors import PresetError
from engine.memory.hardware import Device, this_processor
from engine.memory.terms import Ledger, Source, TermKind, within
from engine.memory.units import MIB
from engine.memory.warnings import rope_warnings
from engine.model.architecture import Model

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "mamba")  # that torch has code for
LIBRARY_BYTES = 180 * MIB
"""Resident memory that torch 2.13 for processors takes beyond kvchat's own. Measured on Linux at
vocabularies of 49k and 262k tokens: 262 and 370 MiB beyond all tensors, a forward's among them."""
N_HELD_AT_ONCE = 4  # rows as wide as a feed-forward block's that a layer holds
FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
BLOCK = 32  # numbers of a block
BLOCK_BYTES = {"q8_0": 34, "fp8": 34, "q4_1": 20, "q4_0": 18, "nf4": 18, "q3": 14}
"""Bytes of `BLOCK` values with their scales; `fp8` is E4M3 with a bfloat16 scale."""
KIVI = {"kivi4": "q4_1"}
"""Types that quantise keys by channel and values by token, with their storage types."""
DECOUPLED = "decoupled"
GEOMETRIC, SEMANTIC = "q8_0", "q4_0"
"""Types of the two halves of a `decoupled` key: pairs that RoPE rotates fast, and the others.
Values have the second type."""
WHOLE_KINDS = ("paged", "tiered", "means")
"""Types of whole caches, keys and values alike; `means` merges tokens."""
STORED = "f16"  # in which types without a number format of their own store rows

N_EXACT = 64
"""Tokens that a query sees as they were computed, where older ones are coded. KIVI's residual is
128 (Liu et al. 2024, arXiv 2402.02750, table 3); half of it in float32 takes as much as all of it
in float16."""
N_BACK = 64  # tokens that can be rolled back; the longest draft is shorter (`MAX_DRAFT`)
N_MEAN = 4  # tokens of a mean; zerfoo takes 64, of which a text loses nearly everything
PAGE = 16  # tokens of a block of `paged`: vLLM's default
DEVICE_SHARE, HOST_SHARE = 0.5, 0.25
"""Shares of the layers that `tiered` stores on the device and in RAM; the rest is on disk."""


@dataclass(frozen=True, slots=True)
class TensorKind:
    """Storage of keys or values of one cache type."""

    method: Literal["float", "token", "channel", "split", "mean"]
    """A floating type; blocks along a token's row or along a channel of `BLOCK` tokens; halves of a
    row in `GEOMETRIC` and `SEMANTIC` blocks; means of `N_MEAN` tokens."""
    form: str
    """The floating type, or the format of the blocks."""
    number_bytes: float
    """Bytes of one number, with its part of the scales."""
    n_together: int = 1
    """Tokens that are coded together."""
    n_divides: int = 1
    """Number that must divide the head size."""


_ROWS = {name: TensorKind("float", name, nbytes) for name, nbytes in FLOAT_BYTES.items()} | {
    name: TensorKind("token", name, nbytes / BLOCK, n_divides=BLOCK)
    for name, nbytes in BLOCK_BYTES.items()
}
_HALVES = (BLOCK_BYTES[GEOMETRIC] + BLOCK_BYTES[SEMANTIC]) / (2 * BLOCK)
_MEAN = TensorKind("mean", STORED, FLOAT_BYTES[STORED] / N_MEAN, n_together=N_MEAN)
KINDS: dict[str, tuple[TensorKind, TensorKind]] = {name: (row, row) for name, row in _ROWS.items()}
"""The storage of keys and of values by name."""
for _name, _form in KIVI.items():
    _keys = TensorKind("channel", _form, BLOCK_BYTES[_form] / BLOCK, n_together=BLOCK)
    KINDS[_name] = _keys, _ROWS[_form]
KINDS[DECOUPLED] = TensorKind("split", STORED, _HALVES, n_divides=2 * BLOCK), _ROWS[SEMANTIC]
KINDS |= {"paged": KINDS[STORED], "tiered": KINDS[STORED], "means": (_MEAN, _MEAN)}


@dataclass(frozen=True, slots=True)
class KindName(KVTypes):
    """Names of the types of keys and of values."""

    @property
    def is_paged(self) -> bool:
        """Whether all layers take blocks from a pool."""
        return self.k == "paged"

    @property
    def is_tiered(self) -> bool:
        """Whether layers move between the device, RAM and disk."""
        return self.k == "tiered"

    @property
    def kinds(self) -> tuple[TensorKind, TensorKind]:
        """The storage of keys and values, if `kind_fault` finds nothing."""
        return KINDS[self.k][0], KINDS[self.v][1]

    @property
    def is_dense(self) -> bool:
        """Whether each row is stored in a floating type."""
        return all(each.method == "float" for each in self.kinds)


class CachedLayer(Protocol):
    """Elements that an attention layer caches of a token."""

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
    """Size of the caches: contexts and sequences."""

    n_ctx: int  # of one sequence
    computed: str  # the type that attention computes in
    n_sequences: int = 1
    keeps_windows: bool = False  # whether layers with a sliding window cache every token


def kind_named(kv_cache: str | None, type_k: str, type_v: str, computed: str) -> KindName:
    """The cache type of a configuration.

    Without a name it is the cache's types; f16, which is what configurations have where nothing
    was asked, is then the type of the computation: converting rows at every step costs more time
    than half of the bytes saves.
    """
    if kv_cache is not None:
        name_k, slash, name_v = kv_cache.partition("/")
        return KindName(name_k, name_v if slash else name_k)
    if type_k == type_v == STORED:
        return KindName(computed, computed)
    return KindName(type_k, type_v)


def kind_fault(kind: KindName, layers: Sequence[CachedLayer]) -> str | None:
    """Why there is no such type, or why the layers cannot have it."""
    unknown = next((name for name in (kind.k, kind.v) if name not in KINDS), None)
    if unknown is not None:
        return f"the torch backend has no cache type {unknown!r}: choose one of {', '.join(KINDS)}"
    whole = next((each for each in (kind.k, kind.v) if each in WHOLE_KINDS), None)
    if whole is not None and kind.k != kind.v:
        return (
            f"the cache type {whole!r} stores keys and values together, so {kind} is not possible"
        )
    keys, values = kind.kinds
    for layer in layers:
        for name, n_divides, head_dim in (
            (kind.k, keys.n_divides, layer.k_head_dim),
            (kind.v, values.n_divides, layer.v_head_dim),
        ):
            if head_dim % n_divides:
                return (
                    f"{name} needs head sizes that are multiples of {n_divides}, but this "
                    f"model's head size is {head_dim}: choose one of "
                    f"{', '.join((*FLOAT_BYTES, *WHOLE_KINDS))}"
                )
    return None


def token_bytes(kind: KindName, layers: Sequence[CachedLayer]) -> float:
    """Bytes of one more token in all layers, with scales, beyond the last ones as computed."""
    k_bytes, v_bytes = (each.number_bytes for each in kind.kinds)
    rows = (
        each.n_kv_heads * (each.k_head_dim * k_bytes + each.v_head_dim * v_bytes) for each in layers
    )
    return sum(rows)


def cache_bytes(kind: KindName, layers: Sequence[CachedLayer], span: CacheSpan) -> int:
    """Bytes that the caches of all sequences allocate on the device.

    Of `tiered` it is the share that stays there; what it moves to RAM is less than half of that
    (`HOST_SHARE`).
    """
    if kind.is_paged:
        n_blocks = n_pool_blocks(span.n_ctx, span.n_sequences)
        return round(n_blocks * PAGE * token_bytes(kind, layers))
    if kind.is_tiered:
        return round(token_bytes(kind, layers) * span.n_ctx * DEVICE_SHARE) * span.n_sequences
    return sum(_layer_bytes(kind, each, span) for each in layers) * span.n_sequences


def read_bytes(kind: KindName, layers: Sequence[CachedLayer], span: CacheSpan) -> int:
    """Bytes of one layer's entries while attention reads them; 0 if it reads a view of them."""
    if kind.k == kind.v == span.computed:
        return 0
    widths = (each.n_kv_heads * (each.k_head_dim + each.v_head_dim) for each in layers)
    return max(widths, default=0) * span.n_ctx * FLOAT_BYTES[span.computed]


def n_pool_blocks(n_ctx: int, n_sequences: int) -> int:
    """Blocks of one pool for all sequences of `n_ctx` tokens each."""
    return -(-n_ctx // PAGE) * n_sequences


def n_aged(length: int, n_exact: int, n_together: int) -> int:
    """Tokens that the last one of `length` reads coded: whole groups, older than the exact ones."""
    return max(0, length - n_exact) // n_together * n_together


def n_tail(n_ctx: int, n_exact: int, n_back: int, n_together: int) -> int:
    """Rows that are stored as computed, with those for rolling back."""
    return min(n_exact + n_back + n_together - 1, n_ctx)


def slides(layer: CachedLayer, n_ctx: int, *, keeps_windows: bool) -> bool:
    """Whether a layer keeps the tokens of its window and no others."""
    return layer.window is not None and layer.window < n_ctx and not keeps_windows


def window_types(kind: KindName, computed: str) -> tuple[str, str]:
    """Float types of the keys and values of a sliding layer: those of the cache type, if any."""
    keys, values = (each.form if each.method == "float" else computed for each in kind.kinds)
    return keys, values


def _layer_bytes(kind: KindName, layer: CachedLayer, span: CacheSpan) -> int:
    if slides(layer, span.n_ctx, keeps_windows=span.keeps_windows):
        assert layer.window is not None
        stored = KindName(*window_types(kind, span.computed))
        return round(token_bytes(stored, [layer]) * n_tail(span.n_ctx, layer.window, N_BACK, 1))
    if kind.is_dense:
        return round(token_bytes(kind, [layer]) * span.n_ctx)
    group = lcm(*(each.n_together for each in kind.kinds))
    coded = token_bytes(kind, [layer]) * n_aged(span.n_ctx, N_EXACT, group)
    exact = token_bytes(KindName(span.computed, span.computed), [layer])
    return round(coded) + round(exact * n_tail(span.n_ctx, N_EXACT, N_BACK, group))


def add_torch(ledger: Ledger, model: Model, configuration: Configuration) -> None:
    """Add a model and its caches; raises `PresetError` if torch lacks either."""
    name = model.file.architecture
    if name not in ARCHITECTURES:
        raise PresetError(
            f"the torch backend does not support the architecture {name} of "
            f"{model.file.path.name} (supported: {', '.join(ARCHITECTURES)}): use the "
            "llama.cpp backend"
        )
    device = device_of(configuration, ledger.devices)
    computed = computed_type(configuration, device)
    size = FLOAT_BYTES[computed]
    weights = sum(prod(each.shape) for each in model.file.tensors) * size
    ledger.add(device, TermKind.WEIGHTS, weights, Source.EXACT, f"all weights as {computed}")
    layers, span = list(model.architecture.layers.values()), cache_span(configuration, computed)
    kind = cache_kind(configuration, computed)
    kv_bytes, state_bytes = held_bytes(model, configuration, computed)
    if layers:
        ledger.add(device, TermKind.KV, kv_bytes, Source.EXACT, f"stored as {kind}")
    if state_bytes:
        note = "with one copy per drafted token"
        ledger.add(device, TermKind.STATE, state_bytes, Source.EXACT, note)
    compute = read_bytes(kind, layers, span) + _activation_bytes(model, configuration, size)
    bounds = within(compute, 0.7)
    ledger.add(device, TermKind.COMPUTE, compute, Source.ESTIMATED, "one layer", bounds)


def held_bytes(model: Model, configuration: Configuration, computed: str) -> tuple[int, int]:
    """Bytes that all sequences' caches allocate: keys and values, and recurrent states.

    Raises `PresetError` if there is no such cache type, or the layers cannot have it.
    """
    layers, kind = list(model.architecture.layers.values()), cache_kind(configuration, computed)
    fault = kind_fault(kind, layers) if layers else None
    if fault is not None:
        raise PresetError(fault)
    states = sum(row.n_convolution + row.n_state for row in model.architecture.states.values())
    n_each = FLOAT_BYTES.get((configuration.kv_cache or "f32").partition("/")[0], 4)
    return (
        cache_bytes(kind, layers, cache_span(configuration, computed)) if layers else 0,
        states * n_each * (1 + MAX_DRAFT) * configuration.n_slots,
    )


def add_library(ledger: Ledger) -> None:
    """Add the memory of PyTorch itself, which every model needs."""
    kind, bounds = TermKind.OVERHEAD, within(LIBRARY_BYTES, 0.5)
    ledger.add(ledger.cpu, kind, LIBRARY_BYTES, Source.ESTIMATED, "PyTorch itself", bounds)


def torch_warnings(
    model: Model, configuration: Configuration, devices: tuple[Device, ...]
) -> Iterator[str]:
    """A context beyond training, and how the backend computes and stores keys and values."""
    yield from rope_warnings(model, configuration.n_ctx // configuration.n_slots, is_kvchat=True)
    computed = computed_type(configuration, device_of(configuration, devices))
    layers, kind = list(model.architecture.layers.values()), cache_kind(configuration, computed)
    if layers:
        yield (
            f"torch computes in {computed} and stores keys and values as {kind}: "
            f"{token_bytes(kind, layers):,.0f} bytes per token"
        )
    else:
        yield f"torch computes in {computed}; without attention layers there is no KV cache"


def device_of(configuration: Configuration, devices: tuple[Device, ...]) -> Device:
    """Device of all layers: a GPU if there is one and the configuration uses it."""
    *gpus, cpu = devices
    if not gpus or configuration.n_gpu_layers == 0:
        return cpu
    return gpus[min(configuration.main_gpu, len(gpus) - 1)]


def computed_type(configuration: Configuration, device: Device) -> str:
    """The type of the computation: `auto` is the shortest that the device multiplies by itself."""
    if configuration.dtype != "auto":
        return configuration.dtype
    if device.kind == "gpu":
        return "bf16"
    features = this_processor().features or frozenset()
    return "bf16" if features & {"avx512_bf16", "amx_tile"} else "f32"


def cache_kind(configuration: Configuration, computed: str) -> KindName:
    """The cache type that a configuration names."""
    return kind_named(configuration.kv_cache, configuration.type_k, configuration.type_v, computed)


def cache_span(configuration: Configuration, computed: str) -> CacheSpan:
    """The size of a configuration's caches."""
    return CacheSpan(
        n_ctx=configuration.n_ctx // configuration.n_slots,
        computed=computed,
        n_sequences=configuration.n_slots,
        keeps_windows=configuration.swa_full,
    )


def _activation_bytes(model: Model, configuration: Configuration, size: int) -> int:
    """Rows of the widest layer for a batch, and the logits in both types that they have."""
    width = model.file.integer(f"{model.file.architecture}.feed_forward_length") or 0
    width = max(width, model.architecture.d_hidden)
    n_logits = configuration.n_rows * model.architecture.n_vocab
    batch = configuration.n_batch_of_kvchat * width * N_HELD_AT_ONCE * size
    return batch + n_logits * (size + FLOAT_BYTES["f32"])
