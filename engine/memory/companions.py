"""The files that run beside a model: a projector for images, adapters (LoRA)."""

from engine.memory.ledger import Ledger
from engine.memory.placement import Placement
from engine.memory.terms import Source, TermKind
from engine.memory.weights import LAYER
from engine.model.gguf import GgufFile

PATCH_LIMIT = 4096
"""Patches of the largest image that llama-server lets through by default."""
FLOAT_BYTES = 4
BUFFERS = 10
"""Activations of a projector's layer that live at once: states, feed-forward, attention."""


def add_projector(ledger: Ledger, projector: GgufFile | None, *, on_gpu: bool) -> None:
    """Add a projector's tensors and its graph: they lie on one device, the first GPU if any."""
    if projector is None:
        return
    device = ledger.gpus[0] if on_gpu and ledger.gpus else ledger.cpu
    weights = sum(tensor.nbytes for tensor in projector.tensors)
    ledger.add(device, TermKind.PROJECTOR, weights, Source.EXACT, "tensor table")
    graph = projector_graph_bytes(projector)
    note = "graph of one large image"
    ledger.add(device, TermKind.PROJECTOR, graph, Source.ESTIMATED, note, spread=0.6)


def projector_graph_bytes(projector: GgufFile) -> int:
    """Give a rough size of the buffers that encode one image."""
    width = projector.integer("clip.vision.embedding_length") or 0
    n_patches = PATCH_LIMIT
    image = projector.integer("clip.vision.image_size")
    patch = projector.integer("clip.vision.patch_size")
    if image and patch:
        n_patches = min(PATCH_LIMIT, max(1, image // patch) ** 2)
    return n_patches * width * BUFFERS * FLOAT_BYTES


def add_adapters(ledger: Ledger, adapters: tuple[GgufFile, ...], where: Placement) -> None:
    """Add adapters: each tensor lies beside the layer that it changes."""
    for adapter in adapters:
        for tensor in adapter.tensors:
            match = LAYER.match(tensor.name)
            device = ledger.cpu
            if match and int(match[1]) < len(where.layer_devices):
                device = where.layer_devices[int(match[1])]
            elif tensor.name.startswith("output"):
                device = where.output_device
            ledger.add(device, TermKind.ADAPTERS, tensor.nbytes, Source.EXACT, "tensor table")
