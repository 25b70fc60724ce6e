"""The buffers of the graph, device by device.

llama.cpp 0c1e57098 reserves one buffer for each backend, for the largest graph
(`sched_reserve`, `src/llama-context.cpp`); the scheduler adds copies of what crosses devices
(`ggml/src/ggml-backend.cpp`).
"""

from engine.configuration import Configuration
from engine.memory.compute import (
    FLOAT_BYTES,
    attention_bytes,
    experts_width,
    layers_bytes,
    logits_bytes,
    mask_bytes,
    output_bytes,
    relative_spread,
)
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape
from engine.memory.kv_types import is_quantized
from engine.memory.ledger import Ledger
from engine.memory.offload import offloaded_tensor_bytes
from engine.memory.placement import Placement
from engine.memory.terms import Source, TermKind
from engine.model.architecture import Architecture, Model

PIPELINE_COPIES = 4
"""`GGML_SCHED_MAX_COPIES`: inputs are kept so often when several GPUs work in a pipeline."""


def add_graph(
    ledger: Ledger,
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
    n_outputs: int,
) -> None:
    """Add the compute buffers of every device that runs a part of the model."""
    architecture = model.architecture
    spread = relative_spread(architecture)
    for device in dict.fromkeys((*where.distinct_devices, where.output_device)):
        layers = 0
        if device in where.distinct_devices:
            layers = layers_bytes(architecture, shape)
        if device.kind == "gpu":
            layers = gpu_layers_bytes(model, configuration, shape, where, device)
        logits = 0
        if device == where.output_device:
            logits = logits_bytes(architecture, shape, n_outputs)
        nbytes, note = max(layers, logits), "formula"
        if device.kind == "gpu":
            note = "formula, not measured on this GPU"
            nbytes += pipeline_bytes(architecture, configuration, shape, where)
        ledger.add(device, TermKind.COMPUTE, nbytes, Source.ESTIMATED, note, spread)
    copies = PIPELINE_COPIES if is_pipelined(configuration, where) else 1
    _add_host_buffers(ledger, model, configuration, shape, where, copies)
    rows = output_bytes(architecture, n_outputs)
    ledger.add(ledger.cpu, TermKind.COMPUTE, rows, Source.ESTIMATED, "rows of logits")


def gpu_layers_bytes(
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
    device: Device,
) -> int:
    """Give the buffer of a GPU's layers: with the copies that CUDA and the scheduler make."""
    architecture, layers = model.architecture, 0
    if device in where.distinct_devices:
        attention = attention_bytes(architecture, shape) + f16_copy_bytes(architecture, shape)
        layers = max(layers_bytes(architecture, shape), attention)
    if device == where.gpus[0]:
        visiting = offloaded_tensor_bytes(model, configuration, shape, where)
        layers = max(layers, layers_bytes(architecture, shape) + visiting if visiting else 0)
    return layers


def pipeline_bytes(
    architecture: Architecture, configuration: Configuration, shape: CacheShape, where: Placement
) -> int:
    """Give the copies of the inputs that several GPUs need to work at once; 0 for one GPU."""
    is_needed = is_pipelined(configuration, where)
    return PIPELINE_COPIES * input_bytes(architecture, shape) if is_needed else 0


def f16_copy_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the f16 copy of one layer's cache that CUDA's prefill makes of quantised types.

    The largest layer, keys and values (latent keys once); since llama.cpp pull request 23907.
    """
    if not shape.flash_attention:
        return 0
    k = is_quantized(shape.type_k)
    v = is_quantized(shape.type_v)
    return max(
        (
            2 * shape.cells(layer) * (k * layer.k_width + v * layer.v_width) * shape.n_streams
            for layer in architecture.distinct_layers
        ),
        default=0,
    )


def is_pipelined(configuration: Configuration, where: Placement) -> bool:
    """Whether several GPUs work on different micro-batches at once, which multiplies inputs."""
    return (
        len(where.gpus) > 1
        and configuration.split_mode == "layer"
        and configuration.offload_kqv
        and not configuration.tensor_overrides
        and not configuration.n_cpu_moe
        and all(device.kind == "gpu" for device in (*where.distinct_devices, where.output_device))
    )


def input_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the inputs of the graph: embedded tokens and masks."""
    embedded = shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES
    return embedded + mask_bytes(architecture, shape)


def _add_host_buffers(
    ledger: Ledger,
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
    n_copies: int,
) -> None:
    """Add what the CPU keeps for GPUs: inputs of the graph, and experts that stay with it."""
    if ledger.cpu in where.distinct_devices or where.output_device == ledger.cpu:
        return
    architecture = model.architecture
    token_bytes = shape.n_graph_tokens * FLOAT_BYTES
    inputs = n_copies * input_bytes(architecture, shape) + token_bytes * architecture.d_hidden
    if configuration.n_cpu_moe or configuration.tensor_overrides:
        inputs = max(inputs, token_bytes * experts_width(architecture))
    note = "inputs of the graph"
    ledger.add(ledger.cpu, TermKind.COMPUTE, inputs, Source.ESTIMATED, note, spread=0.25)
