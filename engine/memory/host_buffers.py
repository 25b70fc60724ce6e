"""What the CPU keeps for GPUs: inputs of the graph, and what it computes for them."""

from engine.memory.compute import (
    attention_bytes,
    compute_bounds,
    decay_bytes,
    has_rotated_keys,
    mask_bytes,
    scores_width,
)
from engine.memory.cuda_kernels import attending_layers, cast_shape, strays
from engine.memory.kv_cache import is_quantized, layers_kv_bytes
from engine.memory.placed_graph import (
    PIPELINE_COPIES,
    Graph,
    embedded_bytes,
    scan_bytes,
    shared_input_bytes,
)
from engine.memory.terms import Ledger, Source, TermKind
from engine.memory.units import FLOAT_BYTES, HALF_BYTES


def add_host_buffers(ledger: Ledger, graph: Graph) -> None:
    """Add what the CPU keeps for GPUs: inputs of the graph, and what it computes for them."""
    if not graph.where.gpus or (not graph.is_offloaded and graph.has_cpu_layers):
        return
    architecture, shape = graph.architecture, graph.shape
    embedded = embedded_bytes(graph)
    inputs = embedded + shared_input_bytes(graph, architecture)
    inputs = graph.n_copies * (inputs + decay_bytes(architecture, shape))
    hidden = shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES
    inputs += max(hidden, _cached_rows_bytes(graph)) + architecture.embeds_positions * hidden
    computed = (_host_attention_bytes(graph), _host_scans_bytes(graph))
    inputs += sum(computed) if graph.is_pipelined else max(computed)
    note = "inputs of the graph"
    bounds = compute_bounds(
        architecture, shape, inputs, "host" if graph.is_whole else "visited host"
    )
    ledger.add(ledger.cpu, TermKind.COMPUTE, inputs, Source.ESTIMATED, note, bounds)


def _host_attention_bytes(graph: Graph) -> int:
    """The attention that the CPU runs for layers of GPUs, or of a hybrid in main memory."""
    architecture, shape = graph.architecture, graph.shape
    if graph.attends_on_cpu and graph.configuration.offload_kqv:
        return _visiting_attention_bytes(graph)
    if architecture.has_position_bias and graph.has_cpu_layers:
        return 2 * shape.n_graph_tokens * scores_width(architecture, shape) // 3 * FLOAT_BYTES
    if strays(architecture, graph.configuration) or _attends_before_state(graph):
        return attention_bytes(architecture, shape) - mask_bytes(architecture, shape)
    return 0


def _cached_rows_bytes(graph: Graph) -> int:
    """Keys and values that come from a GPU to a cache in main memory, in room of the embeddings.

    Values that are views of a fused row come with all of it; those that are rotated are tensors of
    their own. Where the CPU attends, queries come too, and its results are there.
    """
    architecture, shape = graph.architecture, graph.shape
    if graph.configuration.offload_kqv and not graph.has_cpu_layers:
        return 0
    row = architecture.widths.query if architecture.widths.is_fused else 0
    v_row = 0 if is_quantized(shape.type_v) and has_rotated_keys(architecture, shape) else row
    width = 0
    for layer in architecture.distinct_layers:
        stored = layer.k_width + max(layer.v_width, v_row)
        query = layer.n_heads * layer.k_head_dim
        result = layer.n_heads * layer.v_head_dim
        if graph.attends_on_cpu:
            stored = max(stored + query, query + result)
        width = max(width, stored)
    return shape.n_graph_tokens * width * FLOAT_BYTES


def _attends_before_state(graph: Graph) -> bool:
    """Whether a state in main memory follows a layer whose cache is there.

    The scheduler then leaves the attention between both on the CPU: only its scores count.
    """
    architecture = graph.architecture
    if graph.shape.flash_attention or architecture.is_moe:
        return False
    n_cpu = sum(len(graph.layers_on(d)) for d in graph.where.distinct_devices if d.kind == "cpu")
    if not graph.configuration.offload_kqv:
        n_cpu = architecture.n_layers
    return any(i + 1 in architecture.states and i + 1 < n_cpu for i in architecture.layers)


def _host_scans_bytes(graph: Graph) -> int:
    """The scans that the CPU runs: of each layer in a pipeline, else of one at a time."""
    architecture, shape = graph.architecture, graph.shape
    rows = list(architecture.states.values())
    if not rows:
        return 0
    nbytes = 0
    if graph.scan_width:
        scans = [scan_bytes(graph, row) for row in rows]
        nbytes = PIPELINE_COPIES * sum(scans) if graph.is_pipelined else max(scans)
        nbytes += max(scans)
    elif graph.has_cpu_layers:
        widths = architecture.widths
        width = max(widths.state_input, widths.gated_delta_net, widths.delta_net)
        nbytes = shape.n_graph_tokens * width * FLOAT_BYTES
    return nbytes


def _visiting_attention_bytes(graph: Graph) -> int:
    """What visits the CPU for attention: queries, and caches with the values that are views.

    Of each layer in a pipeline. Caches in f32 come as the f16 copies that the graph makes of them.
    """
    architecture, shape = graph.architecture, cast_shape(graph.shape)
    n_tokens = shape.n_graph_tokens
    layers = attending_layers(architecture)
    kinds = dict(enumerate(dict.fromkeys(layers)))
    caches = layers_kv_bytes(architecture, kinds, shape)
    sizes = {}
    for index, layer in kinds.items():
        cache = caches[index]
        if architecture.attends_in_batch:
            cache = n_tokens * (layer.k_width + layer.v_width) * HALF_BYTES
        elif architecture.is_latent and not layer.v_head_dim:
            cache *= 2
        sizes[layer] = cache + n_tokens * layer.n_heads * layer.k_head_dim * FLOAT_BYTES
        if layer.indexer_k_width:
            sizes[layer] += n_tokens * shape.n_cells * HALF_BYTES
    if graph.is_pipelined:
        return PIPELINE_COPIES * sum(sizes[layer] for layer in layers)
    return max(sizes.values(), default=0)
