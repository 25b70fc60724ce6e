"""What a configuration costs on the torch backend: weights by their type, caches by their kind.

No torch is needed for it. Weights and caches are exact; what a forward takes beside them is an
estimate.
"""

from collections.abc import Iterator
from math import prod

from engine.configuration import MAX_DRAFT, Configuration
from engine.errors import PresetError
from engine.memory.hardware import Device, this_processor
from engine.memory.terms import Ledger, Source, TermKind, within
from engine.memory.torch_caches import (
    FLOAT_BYTES,
    CacheSpan,
    KindName,
    cache_bytes,
    kind_fault,
    kind_named,
    read_bytes,
    token_bytes,
)
from engine.memory.units import MIB
from engine.memory.warnings import rope_warnings
from engine.model.architecture import Model

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "mamba")
"""Those that torch has code for, by `general.architecture`."""
LIBRARY_BYTES = 180 * MIB
"""Resident memory that torch 2.13 for processors takes beyond kvchat's own. Measured on Linux at
vocabularies of 49k and 262k tokens: 262 and 370 MiB beyond all tensors, a forward's among them."""
N_HELD_AT_ONCE = 4
"""Rows as wide as a feed-forward block's that a layer holds while it is computed."""


def add_torch(ledger: Ledger, model: Model, configuration: Configuration) -> None:
    """Add what a model takes with its caches on the torch backend.

    Raises:
        PresetError: torch has no code for the model, or no such kind of cache.
    """
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
    ledger.add(
        device, TermKind.COMPUTE, compute, Source.ESTIMATED, "one layer", within(compute, 0.7)
    )


def held_bytes(model: Model, configuration: Configuration, computed: str) -> tuple[int, int]:
    """Bytes that all sequences' caches allocate: keys and values, and recurrent states.

    Raises:
        PresetError: there is no such kind of cache, or the layers cannot have it.
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
    note = "PyTorch itself"
    bounds = within(LIBRARY_BYTES, 0.5)
    ledger.add(ledger.cpu, TermKind.OVERHEAD, LIBRARY_BYTES, Source.ESTIMATED, note, bounds)


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
        yield f"torch computes in {computed}; the model has no keys and values"


def device_of(configuration: Configuration, devices: tuple[Device, ...]) -> Device:
    """Where all layers lie: a GPU where there is one and layers may go there."""
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
    """The kind of cache that a configuration names, with the type of the computation."""
    return kind_named(configuration.kv_cache, configuration.type_k, configuration.type_v, computed)


def cache_span(configuration: Configuration, computed: str) -> CacheSpan:
    """For how much the caches of a configuration are made."""
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
