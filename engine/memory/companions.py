"""What runs beside a model: its MTP head, a projector for images, adapters (LoRA)."""

from dataclasses import dataclass, replace

from engine.configuration import Configuration
from engine.memory.compute import head_bytes
from engine.memory.kv_cache import CacheShape, layers_kv_bytes
from engine.memory.placement import Placement, cached_bytes
from engine.memory.terms import Ledger, Source, Target, TermKind, within
from engine.memory.units import FLOAT_BYTES
from engine.memory.weights import LAYER
from engine.model.architecture import Architecture, Model
from engine.model.gguf import GgufFile

MAX_IMAGE_TOKENS = {
    "qwen2vl_merger": 4096, "qwen2.5vl_merger": 4096, "qwen3vl_merger": 4096, "glm4v": 4096,
    "pixtral": 1024, "lightonocr": 1024, "kimivl": 1024, "lfm2": 1024,
}  # fmt: skip
"""Tokens of the largest image that llama.cpp encodes by default, by type of the projector
(`set_limit_image_tokens` in `tools/mtmd/clip.cpp`); others take images of one size."""
USUAL_IMAGE_TOKENS = 4096
MERGE_KEYS = ("clip.vision.spatial_merge_size", "clip.vision.projector.scale_factor")
USUAL_MERGE = 2  # patches of a side that become one token


@dataclass(frozen=True, slots=True)
class Companions:
    """The other files that run beside a model."""

    draft: Model | None = None
    projector: GgufFile | None = None
    adapters: tuple[GgufFile, ...] = ()


def has_head(architecture: Architecture, configuration: Configuration, target: Target) -> bool:
    """Whether the target program drafts with the model's own head: kvchat does not."""
    return configuration.n_mtp_draft > 0 and target != "kvchat" and bool(architecture.head_layers)


def add_head(
    ledger: Ledger,
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
) -> None:
    """Add the second context that llama-server opens for an MTP head (`common/speculative.cpp`).

    It caches the layers of the head over the whole context, as f16 unless a draft model's types are
    named.
    """
    architecture, draft = model.architecture, configuration.draft
    own = replace(shape, type_k="f16", type_v="f16")
    if draft is not None:
        own = replace(shape, type_k=draft.type_k, type_v=draft.type_v)
    sizes = layers_kv_bytes(architecture, architecture.head_layers, own)
    for device, nbytes in cached_bytes(sizes, configuration, where).items():
        ledger.add(device, TermKind.DRAFT, nbytes, Source.EXACT, "cache of the MTP head")
    graph, note = head_bytes(architecture, shape), "graph of the MTP head"
    bounds = within(graph, 0.25)
    ledger.add(where.output_device, TermKind.DRAFT, graph, Source.ESTIMATED, note, bounds)


def add_projector(ledger: Ledger, projector: GgufFile, *, on_gpu: bool) -> None:
    """Add a projector's tensors and its graph: they lie on one device, the first GPU if any."""
    is_on_gpu = on_gpu and bool(ledger.gpus)
    device = ledger.gpus[0] if is_on_gpu else ledger.cpu
    weights = sum(tensor.nbytes for tensor in projector.tensors)
    ledger.add(device, TermKind.PROJECTOR, weights, Source.EXACT, "tensor table")
    graph, note = projector_graph_bytes(projector), "graph of one large image"
    bounds = within(graph, 0.6 if is_on_gpu else 0.25)
    ledger.add(device, TermKind.PROJECTOR, graph, Source.ESTIMATED, note, bounds)


def add_adapters(ledger: Ledger, adapters: tuple[GgufFile, ...], where: Placement) -> None:
    """Add adapters: each tensor lies beside the layer that it changes."""
    for tensor in (tensor for adapter in adapters for tensor in adapter.tensors):
        match, device = LAYER.match(tensor.name), ledger.cpu
        if match and int(match[1]) < len(where.layer_devices):
            device = where.layer_devices[int(match[1])]
        elif tensor.name.startswith("output"):
            device = where.output_device
        ledger.add(device, TermKind.ADAPTERS, tensor.nbytes, Source.EXACT, "tensor table")


def projector_graph_bytes(projector: GgufFile) -> int:
    """What encodes one image: its feed-forward rows and two hidden states, in f32.

    Measured with libmtmd of 0c1e57098 on the CPU, flash attention on, for seven shapes of three
    kinds (196 to 4,096 patches, 768 to 1,152 wide): 1.00 to 1.17 of this. llama-server of that
    build took 1.16 of this for 16,384 patches of a qwen3vl_merger.
    """
    n_ff = projector.integer("clip.vision.feed_forward_length") or 0
    width = projector.integer("clip.vision.embedding_length") or 0
    return _max_patches(projector) * (n_ff + 2 * width) * FLOAT_BYTES


def _max_patches(projector: GgufFile) -> int:
    """Patches of the largest image that a projector encodes at once."""
    kind = projector.text("clip.projector_type") or projector.text("clip.vision.projector_type")
    image = projector.integer("clip.vision.image_size")
    patch = projector.integer("clip.vision.patch_size")
    if kind not in MAX_IMAGE_TOKENS and image and patch:
        return max(1, image // patch) ** 2
    merges = filter(None, map(projector.integer, MERGE_KEYS))
    merge = next(merges, 1 if kind == "pixtral" else USUAL_MERGE)
    return MAX_IMAGE_TOKENS.get(kind or "", USUAL_IMAGE_TOKENS) * merge**2
