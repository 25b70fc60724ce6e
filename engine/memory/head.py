"""The next-token head (NextN, MTP) of a model that drafts for itself.

llama-server of llama.cpp 0c1e57098 opens a second context for it with `--spec-type draft-mtp`: the
cache of the head's layers over the whole context, and a graph (`common/speculative.cpp`).
"""

from dataclasses import replace

from engine.configuration import Configuration
from engine.memory.compute import head_bytes
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, layers_kv_bytes
from engine.memory.ledger import Ledger
from engine.memory.placement import Placement
from engine.memory.terms import Source, Target, TermKind
from engine.model.architecture import Architecture, Model


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
    """Add cache and graph of the head: its cache is f16 unless a draft model's types are named."""
    architecture, draft = model.architecture, configuration.draft
    own = replace(shape, type_k="f16", type_v="f16")
    if draft is not None:
        own = replace(shape, type_k=draft.type_k, type_v=draft.type_v)
    for index, nbytes in layers_kv_bytes(architecture, architecture.head_layers, own).items():
        device = _device(index, configuration, where, ledger.cpu)
        ledger.add(device, TermKind.DRAFT, nbytes, Source.EXACT, "cache of the next-token head")
    graph = head_bytes(architecture, shape)
    device = where.output_device
    note = "graph of the next-token head"
    ledger.add(device, TermKind.DRAFT, graph, Source.ESTIMATED, note, spread=0.25)


def _device(index: int, configuration: Configuration, where: Placement, cpu: Device) -> Device:
    if not configuration.offload_kqv or index >= len(where.layer_devices):
        return cpu
    return where.layer_devices[index]
