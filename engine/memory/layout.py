"""The compute buffers of models whose graph is known, as llama.cpp lays them out on its devices.

The graph for a placement (`layer_graph.py`), what the scheduler makes of it (`scheduler.py`) and
what then happens in each buffer (`allocator.py`) depend on no size: they are made once, and every
context asks them for its own sizes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from engine.configuration import KVTypeName
from engine.memory.allocator import Program, programs_of
from engine.memory.graph_builder import INPUTS, PREFIX, ROWS, PlacedLayer, PlacedModel
from engine.memory.kv_cache import PAD, CacheShape
from engine.memory.layer_graph import model_graph
from engine.memory.layer_kinds import (
    LOOPED,
    NORMED_WHOLE,
    UNCUT,
    LayerKind,
    walked_layers,
    weight_layer,
)
from engine.memory.layer_tensors import graph_inputs, layer_sizes
from engine.memory.scheduler import Size, schedule
from engine.model.architecture import Architecture, Model
from engine.model.gguf import GgufFile, cached_by_header
from engine.model.gguf_header import TensorInfo
from engine.model.layers import Layer

LEADING_EQUALS, LAST_LAYERS = 3, 2
"""Equal layers that are laid out, and the last of all: others find the room of those before."""
GPU_ALIGNMENT, CPU_ALIGNMENT = 128, 32
WEIGHTS, FIRST_KIND = 0, 3
OWN_TABLES = {INPUTS: 1, ROWS: 2}
"""Where sizes are found: those of weights, inputs, few rows, and the kinds of layers."""
ROW_MULTIPLE = 512
"""Elements that CUDA pads rows of quantised weights to (`MATRIX_ROW_PADDING`)."""
LEAST_TOKENS = 32
"""From how many tokens on weights of main memory visit the first GPU (`op_offload`)."""
NAMED_WITHOUT_SUFFIX = {"ffn_norm": "ffn_norm.weight"}
"""Names of Falcon H1."""
ON_FIRST_LAYER = (
    "token_embd_norm.weight", "token_embd_norm.bias", "per_layer_model_proj.weight",
    "per_layer_proj_norm.weight", "hrm.z_l_init",
)  # fmt: skip
"""Weights of the input that lie where the first layer does."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Where a model's parts are computed, by number: GPUs first, the CPU last."""

    n_devices: int
    layers: tuple[int, ...]
    output: int
    is_cache_on_cpu: bool = False
    n_copies: int = 1
    """How often each input is kept."""
    attends_on_cpu: bool = False
    """Whether no GPU has a kernel for attention."""
    scans_on_cpu: bool = False
    norms_stay: bool = False
    """Whether the norm before a layer is computed where that layer lies: so it is on workers."""
    visited: int | None = 0
    """The device that weights of main memory visit; None is no device."""
    moved: tuple[tuple[str, int], ...] = ()
    """The devices of tensors that lie on another than their layer's, by name."""

    @property
    def cpu(self) -> int:
        return self.n_devices - 1


def laid_out_bytes(
    model: Model,
    shape: CacheShape,
    devices: Devices,
    n_outputs: int,
    *,
    is_late: bool = False,
) -> list[int]:
    """The buffer of each device; empty where the order of a model's tensors is not known.

    Args:
        model: The model.
        shape: The cache.
        devices: Where its parts lie.
        n_outputs: The most rows with logits.
        is_late: Whether values are transposed after they were read, and not as they are stored.
    """
    architecture, n_tokens = model.architecture, shape.n_graph_tokens
    n_rows = n_tokens if architecture.gives_all_logits else min(n_tokens, n_outputs)
    plan = _plan(
        model.file, architecture, (shape.flash_attention, shape.type_k, shape.type_v, is_late),
        devices, (n_tokens >= LEAST_TOKENS, n_rows >= LEAST_TOKENS),
    )  # fmt: skip
    if plan is None:
        return []
    tables: list[dict[str, int]] = [
        plan.weights,
        graph_inputs(architecture, shape, n_rows, is_late=is_late),
        layer_sizes(architecture, shape, *plan.kinds[-1], n_rows),
        *(layer_sizes(architecture, shape, *each, n_tokens) for each in plan.kinds),
    ]
    alignments = [*[GPU_ALIGNMENT] * (devices.n_devices - 1), CPU_ALIGNMENT]
    return [
        program.buffer_bytes([tables[table].get(key, 0) for table, key in keys], alignment)
        for (program, keys), alignment in zip(plan.programs, alignments, strict=True)
    ]  # 0 is a tensor that no such architecture has


@dataclass(frozen=True, slots=True)
class _Plan:
    """What happens in the buffers of a placement, and whose sizes that asks for."""

    programs: tuple[tuple[Program, tuple[tuple[int, str], ...]], ...]
    """Each with the table of each of its sizes, and its key there."""
    weights: dict[str, int]
    kinds: tuple[tuple[Layer, dict[str, TensorInfo]], ...]
    """Each kind of layer once, that of the last of all as the last."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The tensors of a file by layer, by their names without it."""

    layers: list[dict[str, TensorInfo]]
    names: Sequence[frozenset[str]]
    shapes: Sequence[int]
    """Layers with tensors of equal names and shapes, and so sizes, have one number."""
    types: Sequence[int]
    """Those with tensors of equal types have one: these tell what visits a GPU."""
    others: dict[str, TensorInfo]


class _WalkedLayer(NamedTuple):
    """A layer where it is computed."""

    placed: PlacedLayer
    layer: Layer
    source: int
    """The layer of the file whose weights it has."""


@cached_by_header(128)
def _plan(
    file: GgufFile,
    architecture: Architecture,
    cache: tuple[bool, KVTypeName, KVTypeName, bool],
    devices: Devices,
    is_large: tuple[bool, bool],
) -> _Plan | None:
    is_flash, type_k, type_v, is_late = cache
    shape = CacheShape(PAD, PAD, type_k, type_v, flash_attention=is_flash)
    kinds = walked_layers(architecture, file, shape, is_late=is_late)
    table = _table(file)
    if not kinds or (len(table.layers) < len(kinds) and architecture.name not in LOOPED):
        return None
    chosen = _chosen(architecture, devices, table, kinds)
    sources = [each.source for each in chosen]
    is_visited = devices.cpu > 0 and devices.visited is not None
    outline = PlacedModel(
        tuple(each.placed for each in chosen),
        _beside(table, devices),
        devices.n_devices,
        visited=devices.visited or 0,
        norms_stay=devices.norms_stay,
        offloads=is_visited and is_large[0],
        offloads_rows=is_visited and is_large[1],
        sources=tuple(map(sources.index, sources)),
        cuts_rows=architecture.name not in UNCUT and not architecture.gives_all_logits,
        norms_all=architecture.name in NORMED_WHOLE,
        has_rows=not architecture.gives_all_logits,
        attends_on_cpu=devices.attends_on_cpu,
        scans_on_cpu=devices.scans_on_cpu,
        has_image_rows=architecture.n_image_rows > 0,
    )
    return _with_sizes(_programs(outline, devices.n_copies), table, chosen)


def _chosen(
    architecture: Architecture,
    devices: Devices,
    table: _Table,
    kinds: Sequence[tuple[LayerKind, Layer]],
) -> list[_WalkedLayer]:
    """The layers that are laid out: those that stand for all, or all where devices mix them."""
    loops, sharing = tuple(kind.loop for kind, _ in kinds), architecture.sharing
    moved, walked = dict(devices.moved), []
    for index, (kind, layer) in enumerate(kinds):
        source = weight_layer(loops, index, len(table.layers))
        others = tuple(
            (name, moved[whole])
            for name in (table.layers[source] if moved else ())
            if (whole := f"blk.{source}.{name}") in moved
        )
        owner = sharing.get(index, index)
        cached_on = devices.cpu if devices.is_cache_on_cpu else devices.layers[owner]
        device, names = devices.layers[source], table.names[source]
        placed = PlacedLayer(kind, names, device, cached_on, others)
        walked.append(_WalkedLayer(placed, layer, source))
    crosses = devices.attends_on_cpu or devices.scans_on_cpu or sharing
    is_apart = any(devices.layers[i] != devices.layers[to] for i, to in sharing.items())
    if architecture.name in LOOPED or is_apart or (devices.n_copies > 1 and crosses):
        return walked
    signatures = [
        (placed, layer, table.shapes[i], table.types[i] if _visits(placed, devices.cpu) else -1)
        for placed, layer, i in walked
    ]
    return [walked[i] for i in _standing_for_all(signatures, pairs=bool(architecture.states))]


def _with_sizes(programs: Iterable[Program], table: _Table, chosen: list[_WalkedLayer]) -> _Plan:
    """Programs with the table and the key of each of their sizes."""
    sized = [(layer, table.shapes[source]) for _, layer, source in chosen]
    distinct = list(dict.fromkeys(reversed(sized)))[::-1]
    owners = [distinct.index(each) for each in sized]
    weights: dict[str, int] = {}

    def place(size: Size) -> tuple[int, str]:
        owner, name = size
        if name.startswith(PREFIX):
            tensors = table.others if owner == INPUTS else table.layers[chosen[owner].source]
            key = f"{owner} {name}"
            weights[key] = _copied_bytes(tensors.get(name.removeprefix(PREFIX)))
            return WEIGHTS, key
        return owners[owner] + FIRST_KIND if owner >= 0 else OWN_TABLES[owner], name

    placed = tuple((program, tuple(map(place, program.sizes))) for program in programs)
    firsts = [chosen[owners.index(number)] for number in range(len(distinct))]
    kinds = tuple((layer, table.layers[source]) for _, layer, source in firsts)
    return _Plan(placed, weights, kinds)


@lru_cache(maxsize=512)
def _programs(outline: PlacedModel, n_copies: int) -> list[Program]:
    """What happens in each buffer: the same wherever between others layers change their device."""
    scheduled = schedule(model_graph(outline), outline.n_devices, n_copies)
    return programs_of(scheduled, outline.n_devices)


def _visits(layer: PlacedLayer, cpu: int) -> bool:
    """Whether weights of a layer lie in main memory beside GPUs."""
    return cpu > 0 and cpu in (layer.device, *dict(layer.moved).values())


def _standing_for_all(signatures: Sequence[object], *, pairs: bool) -> list[int]:
    """Layers that stand for all: some of each kind on each device, and the last.

    With `pairs` of each kind before each other: states are read before the layer before is done.
    """
    seen: Counter[object] = Counter()
    chosen = []
    for index, signature in enumerate(signatures):
        key = tuple(signatures[index : index + 2]) if pairs else signature
        seen[key] += 1
        is_near_end = index >= len(signatures) - LAST_LAYERS
        if seen[key] <= LEADING_EQUALS or is_near_end:
            chosen.append(index)
    return chosen


@cached_by_header(1)
def _table(file: GgufFile) -> _Table:
    layers: dict[int, dict[str, TensorInfo]] = {}
    others = {}
    for tensor in file.tensors:
        parts = tensor.name.split(".", 2)
        if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit():
            name = NAMED_WITHOUT_SUFFIX.get(parts[2], parts[2])
            layers.setdefault(int(parts[1]), {})[name] = tensor
        else:
            others[tensor.name] = tensor
    if "output.weight" not in others and "token_embd.weight" in others:
        others["output.weight"] = others["token_embd.weight"]
    ordered = [layers.get(index, {}) for index in range(max(layers, default=-1) + 1)]
    shapes = [tuple((name, t.shape) for name, t in each.items()) for each in ordered]
    types = [tuple(t.type.name for t in each.values()) for each in ordered]
    names = [frozenset(each) for each in ordered]
    return _Table(ordered, names, _numbers(shapes), _numbers(types), others)


def _numbers(items: Iterable[object]) -> list[int]:
    """A number for each item, the same for equal ones."""
    first: dict[object, int] = {}
    return [first.setdefault(item, len(first)) for item in items]


def _copied_bytes(weight: TensorInfo | None) -> int:
    """A tensor on a GPU, with the padding of its last row; 0 where a file lacks it."""
    if weight is None:
        return 0
    rest = weight.shape[0] % ROW_MULTIPLE if weight.shape and weight.type.block_size > 1 else 0
    return weight.nbytes + (weight.type.row_bytes(ROW_MULTIPLE - rest) if rest else 0)


def _beside(table: _Table, devices: Devices) -> PlacedLayer:
    moved = tuple((name, devices.layers[0]) for name in ON_FIRST_LAYER)
    return PlacedLayer(LayerKind(), frozenset(table.others), devices.output, devices.output, moved)
