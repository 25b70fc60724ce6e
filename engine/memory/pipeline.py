"""What crosses to GPUs that work on different micro-batches at once, and back from the CPU."""

from engine.memory.compute import decay_bytes
from engine.memory.cuda_kernels import attending_layers
from engine.memory.hardware import Device
from engine.memory.kv_cache import layers_kv_bytes
from engine.memory.placed_graph import Graph, gpu_input_bytes, scan_bytes
from engine.memory.units import FLOAT_BYTES
from engine.model.architecture import Architecture


def crossing_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """What crosses to a GPU before its first layer: inputs, hidden states, gates of Mamba.

    Behind the first GPU hidden states cross as they are and normed, RWKV's with those of the
    tokens before.
    """
    is_first = device == graph.where.gpus[0]
    n_states = 1 if is_first or part.widths.is_normed_behind else 2
    is_shifted = part.widths.mixtures and not part.widths.feed_forward
    n_states *= 2 if is_shifted or part.family.keeps_first_values else 1
    n_states += is_first and part.embeds_positions
    n_states += part.n_image_rows * (not is_first)
    width = n_states * part.d_hidden + part.streams_width
    is_hybrid = part.family.state == "mamba2" and bool(graph.architecture.layers)
    if min(graph.layers_on(device)) in part.states and not is_hybrid:
        width += part.widths.state_input // (2 if is_first else 1)
    embedded = graph.shape.n_graph_tokens * part.d_hidden * FLOAT_BYTES
    inputs = gpu_input_bytes(graph, part) - embedded + decay_bytes(part, graph.shape)
    inputs += _of_other_layers_bytes(graph, device)
    return graph.shape.n_graph_tokens * width * FLOAT_BYTES + inputs


def _of_other_layers_bytes(graph: Graph, device: Device) -> int:
    """What layers of a GPU take from elsewhere (Gemma 3n and 4).

    Their own part of the embeddings for all layers, which the first GPU makes of whole ones, and
    caches of layers on another GPU. Streams come from the last GPU, where they are made.
    """
    whole, own = graph.architecture, set(graph.layers_on(device))
    if not whole.layer_embedding_width:
        return 0
    owners = {index: whole.sharing[index] for index in own & whole.sharing.keys()}
    shared = {i: whole.layers[owner] for i, owner in owners.items() if owner not in own}
    is_first = device == graph.where.gpus[0]
    share = 1 if is_first else len(own) / whole.n_blocks
    width = round(share * whole.layer_embedding_width) + whole.streams_width
    caches = layers_kv_bytes(whole, shared, graph.shape)
    return graph.shape.n_graph_tokens * width * FLOAT_BYTES + sum(caches.values())


def returning_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """The results of attention and scans that the CPU ran, for each layer of a GPU."""
    nbytes = 0
    if graph.scan_width:
        nbytes += sum(scan_bytes(graph, row) for row in part.states.values())
    if graph.attends_on_cpu:
        v_dim = max(part.v_head_dims)
        layers = attending_layers(part)[: len(graph.layers_on(device))]
        width = sum(layer.n_heads * (layer.v_head_dim or v_dim) for layer in layers)
        nbytes += graph.shape.n_graph_tokens * width * FLOAT_BYTES
    return nbytes


def chosen_masks_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """The masks of chosen tokens that cross to the layers behind the first GPU.

    Those of one slot, or of slots with caches of their own: in a unified cache nothing is chosen.
    """
    shape = graph.shape
    is_sparse = shape.flash_attention and (shape.n_slots == 1 or not shape.kv_unified)
    if part.family.indexer != "blocks" or device == graph.where.gpus[0] or not is_sparse:
        return 0
    n_layers = sum(layer.indexer_k_width > 0 for layer in part.layers.values())
    return n_layers * shape.n_graph_tokens * shape.n_cells * FLOAT_BYTES
