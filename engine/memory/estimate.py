"""Memory that a configuration needs on each device, each number with its source.

Target programs differ: kvchat opens one sequence and reserves logits for its longest draft; llama-
server opens its slots and reserves logits for one draft in each.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.configuration import DRAFT_N_CTX, Configuration
from engine.errors import PresetError
from engine.memory.compute import falls_off_flash_attention, head_bytes
from engine.memory.graph import Graph, add_graph
from engine.memory.hardware import Device
from engine.memory.kv_cache import (
    PAD,
    CacheShape,
    layer_cache_bytes,
    layer_kv_bytes,
    layer_state_bytes,
    layers_kv_bytes,
)
from engine.memory.placement import Placement, cached_bytes, place
from engine.memory.terms import DeviceEstimate, Ledger, Source, Target, TermKind, within
from engine.memory.torch_caches import add_library, add_torch, torch_warnings
from engine.memory.units import FLOAT_BYTES, format_bytes
from engine.memory.warnings import check_not_aborted, warnings_for
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
class Estimate:
    """The cost of a configuration in a target program."""

    target: Target
    configuration: Configuration
    n_ctx: int
    """Cells of all slots after llama.cpp's padding."""
    devices: tuple[DeviceEstimate, ...]
    warnings: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(device.total_bytes for device in self.devices)

    def fits(self, margin_bytes: int = 0) -> bool:
        """Whether every device keeps the margin free."""
        used = (device for device in self.devices if device.total_bytes)
        return all(device.left_bytes >= margin_bytes for device in used)


@dataclass(frozen=True, slots=True)
class Companions:
    """The other files that run beside a model."""

    draft: Model | None = None
    projector: GgufFile | None = None
    adapters: tuple[GgufFile, ...] = ()


def estimate(
    model: Model,
    configuration: Configuration,
    devices: tuple[Device, ...],
    *,
    target: Target = "kvchat",
    draft: Model | None = None,
    companions: Companions | None = None,
) -> Estimate:
    """Memory that a configuration needs on the GPUs and, as the last device, the CPU.

    `draft` is the model of `configuration.draft`, `companions` the other files that it names.

    Raises:
        PresetError: a combination that llama.cpp refuses, or that torch has no code for.
    """
    beside = companions or Companions()
    draft = draft or beside.draft
    own = None if draft is None else configuration.of_draft(target)
    ledger, n_vocab = Ledger(devices), model.file.n_vocab or 0
    if configuration.backend == "torch" and target == "kvchat":
        add_torch(ledger, model, configuration)
        if draft is not None and own is not None:
            ledger.part = TermKind.DRAFT
            add_torch(ledger, draft, own)
            ledger.part = None
        ledger.add_overhead(target, n_vocab)
        add_library(ledger)
        notes = tuple(torch_warnings(model, configuration, devices))
        return Estimate(target, configuration, configuration.n_ctx, ledger.totals(), notes)
    graph = _add_model(ledger, model, configuration, target)
    shape = graph.shape
    if _has_head(graph.architecture, configuration, target):
        _add_head(ledger, graph)
    if draft is not None and own is not None:
        ledger.part = TermKind.DRAFT
        _add_model(ledger, draft, own, target)
        ledger.part = None
    if configuration.mmproj_path is not None and beside.projector is not None:
        _add_projector(ledger, beside.projector, on_gpu=configuration.mmproj_offload)
    if configuration.lora_paths:
        _add_adapters(ledger, beside.adapters, graph.where)
    ledger.add_overhead(target, n_vocab)
    n_ctx = shape.n_cells * shape.n_streams
    warnings = warnings_for(model, configuration, shape, devices, is_kvchat=target == "kvchat")
    return Estimate(target, configuration, n_ctx, ledger.totals(), tuple(warnings))


def _add_model(ledger: Ledger, model: Model, configuration: Configuration, target: Target) -> Graph:
    architecture, tolerance = model.architecture, model.file.weights_spread
    shape = shape_for(architecture, configuration, target, ledger.devices)
    with_head = _has_head(architecture, configuration, target)
    where = place(model.file, configuration, ledger.devices, with_head=with_head)
    ledger.add_mapped(where.mapped)
    check_not_aborted(model, shape)
    source = Source.ESTIMATED if tolerance else Source.EXACT
    for device, nbytes in where.weight_bytes.items():
        note = f"usual tensor types of {model.file.file_type}" if tolerance else "tensor table"
        if device == ledger.cpu and where.mapped.repacked:
            copies = format_bytes(where.mapped.repacked)
            note = f"{note}, {copies} repacked for a CPU with {device.instructions}"
            note += "; tied embeddings are stored twice" * where.is_repacked
        if nbytes:
            bounds = within(nbytes, tolerance)
            ledger.add(device, TermKind.WEIGHTS, nbytes, source, note, bounds)
    source = Source.ESTIMATED if architecture.doubts else Source.EXACT
    note, tolerance = "; ".join(architecture.doubts), 0.5 if architecture.doubts else 0.0
    for kind, sizes in (
        (TermKind.KV, layer_kv_bytes(architecture, shape)),
        (TermKind.STATE, layer_state_bytes(architecture, shape)),
    ):
        for device, nbytes in cached_bytes(sizes, configuration, where).items():
            ledger.add(device, kind, nbytes, source, note, within(nbytes, tolerance))
    graph = Graph(model, configuration, shape, where)
    is_draft = ledger.part is TermKind.DRAFT
    add_graph(ledger, graph, shape.n_slots if is_draft else n_outputs(configuration, target))
    return graph


def _has_head(architecture: Architecture, configuration: Configuration, target: Target) -> bool:
    """Whether the target program drafts with the model's own head: kvchat does not."""
    return configuration.n_mtp_draft > 0 and target != "kvchat" and bool(architecture.head_layers)


def _add_head(ledger: Ledger, graph: Graph) -> None:
    """Add the second context that llama-server opens for an MTP head (`common/speculative.cpp`).

    It caches the layers of the head over the whole context, as f16 unless a draft model's types are
    named.
    """
    draft, shape = graph.configuration.draft, replace(graph.shape, type_k="f16", type_v="f16")
    if draft is not None:
        shape = replace(shape, type_k=draft.type_k, type_v=draft.type_v)
    sizes = layers_kv_bytes(graph.architecture, graph.architecture.head_layers, shape)
    for device, nbytes in cached_bytes(sizes, graph.configuration, graph.where).items():
        ledger.add(device, TermKind.DRAFT, nbytes, Source.EXACT, "cache of the MTP head")
    nbytes, device = head_bytes(graph.architecture, graph.shape), graph.where.output_device
    note, bounds = "graph of the MTP head", within(nbytes, 0.25)
    ledger.add(device, TermKind.DRAFT, nbytes, Source.ESTIMATED, note, bounds)


def _add_projector(ledger: Ledger, projector: GgufFile, *, on_gpu: bool) -> None:
    """Add a projector's tensors and graph to one device: the first GPU, or the CPU."""
    is_on_gpu = on_gpu and bool(ledger.gpus)
    device = ledger.gpus[0] if is_on_gpu else ledger.cpu
    weights = sum(tensor.nbytes for tensor in projector.tensors)
    ledger.add(device, TermKind.PROJECTOR, weights, Source.EXACT, "tensor table")
    graph, note = projector_graph_bytes(projector), "graph of one large image"
    bounds = within(graph, 0.6 if is_on_gpu else 0.25)
    ledger.add(device, TermKind.PROJECTOR, graph, Source.ESTIMATED, note, bounds)


def _add_adapters(ledger: Ledger, adapters: tuple[GgufFile, ...], where: Placement) -> None:
    """Add adapters: each tensor is on the device of the layer that it changes."""
    for tensor in (tensor for adapter in adapters for tensor in adapter.tensors):
        match, device = LAYER.match(tensor.name), ledger.cpu
        if match and int(match[1]) < len(where.layer_devices):
            device = where.layer_devices[int(match[1])]
        elif tensor.name.startswith("output"):
            device = where.output_device
        ledger.add(device, TermKind.ADAPTERS, tensor.nbytes, Source.EXACT, "tensor table")


def projector_graph_bytes(projector: GgufFile) -> int:
    """Graph bytes for one image: feed-forward rows and two hidden states, in f32.

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


def shape_for(
    architecture: Architecture,
    configuration: Configuration,
    target: Target,
    devices: tuple[Device, ...],
) -> CacheShape:
    """The cache that the target program opens, without flash attention if that is impossible."""
    shape = cache_shape(configuration)
    is_possible = architecture.has_flash_attention and not falls_off_flash_attention(
        architecture, configuration, devices
    )
    rolls_back = architecture.rolls_back and target != "kvchat"
    return replace(
        shape,
        flash_attention=shape.flash_attention and is_possible,
        n_rollback=configuration.n_mtp_draft if rolls_back else 0,
        is_causal=not architecture.attends_in_batch,
    )


def cache_shape(configuration: Configuration) -> CacheShape:
    """The cache that every target program opens; flash attention `auto` counts as on."""
    return CacheShape(
        n_ctx=configuration.n_ctx,
        n_ubatch=min(configuration.n_batch, configuration.n_ubatch),
        type_k=configuration.type_k,
        type_v=configuration.type_v,
        flash_attention=configuration.flash_attention != "off",
        n_slots=configuration.n_slots,
        kv_unified=configuration.kv_unified and configuration.n_slots > 1,
        swa_full=configuration.swa_full,
    )


def n_outputs(configuration: Configuration, target: Target) -> int:
    """Maximum rows of logits in one batch: `n_outputs_max` of the target program."""
    if target == "kvchat":
        return configuration.n_rows
    n_draft = max(configuration.speculation.n_draft_of_server, configuration.n_mtp_draft)
    return configuration.n_slots * (1 + n_draft)


def slot_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The bytes of cache and state of one further slot.

    Separate slots each add their cells. With shared cells a slot adds only its own windows and
    states.
    """
    n_slots = shape.n_slots + 1
    n_ctx = shape.n_ctx if shape.kv_unified else shape.n_cells * n_slots
    shapes = (shape, replace(shape, n_slots=n_slots, n_ctx=n_ctx))
    now, more = (sum(layer_cache_bytes(architecture, each).values()) for each in shapes)
    return more - now


def slots_text(
    architecture: Architecture, configuration: Configuration, devices: tuple[Device, ...]
) -> str:
    """Text about the context of kvchat's slots and the memory of one more slot."""
    shape = shape_for(architecture, configuration, "kvchat", devices)
    price, n_slots = slot_bytes(architecture, shape), shape.n_slots
    if shape.kv_unified:
        cost = f"needs {format_bytes(price)}" if price else "needs no extra memory"
        return (
            f"{n_slots} slots share {shape.n_cells:,} cells and store a common prefix once; "
            f"another slot {cost}. Replies that run together are rounded differently, so a "
            "reply may differ from one computed alone"
        )
    return (
        f"{n_slots} slots have {shape.n_cells:,} tokens of context each; another slot needs "
        f"{format_bytes(price)}"
    )


def cache_bytes(
    model: Model, configuration: Configuration, devices: tuple[Device, ...], target: Target
) -> int:
    """The exact bytes of keys, values and state of all slots, without the draft model's.

    Raises `PresetError` for a combination that llama.cpp refuses.
    """
    shape = shape_for(model.architecture, configuration, target, devices)
    return sum(layer_cache_bytes(model.architecture, shape).values())


Estimator = Callable[[Configuration], Estimate]


class DoesNotFitError(PresetError):
    """No allowed configuration fits; the message has the missing bytes of each device."""

    title = "The model does not fit"


def estimator(
    model: Model,
    devices: tuple[Device, ...],
    *,
    target: Target = "kvchat",
    draft: Model | None = None,
    companions: Companions | None = None,
) -> Estimator:
    """The estimate as a function of the configuration alone."""
    return lambda configuration: estimate(
        model, configuration, devices, target=target, draft=draft, companions=companions
    )


def max_n_ctx(
    configuration: Configuration, cost: Estimator, *, n_ctx_limit: int, margin_bytes: int = 0
) -> int | None:
    """The largest context that fits, in steps of 256 up to a limit; None if none does.

    The cost never falls when the context grows, so the steps are bisected.
    """
    limit = n_ctx_limit or PAD

    def is_short(steps: int) -> bool:
        return not cost(with_n_ctx(configuration, min(steps * PAD, limit))).fits(margin_bytes)

    n_steps = bisect_left(range(1, -(-limit // PAD) + 1), True, key=is_short)
    return min(n_steps * PAD, limit) or None


def with_n_ctx(configuration: Configuration, n_ctx: int) -> Configuration:
    """Change the context, and the draft model's up to the length that drafts use."""
    draft = configuration.draft
    if draft is not None:
        draft = replace(draft, n_ctx=min(n_ctx, DRAFT_N_CTX))
    return replace(configuration, n_ctx=n_ctx, draft=draft)
