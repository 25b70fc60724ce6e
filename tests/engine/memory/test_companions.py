"""Projectors and adapters beside a model."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.companions import projector_graph_bytes
from engine.memory.estimate import Companions, Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.model.catalog import find_entry
from engine.model.gguf import GgufFile, read_gguf
from tests.gguf_files import header, write

GPU = Device("GPU 0", "gpu", 80 * GIB, 80 * GIB)
CPU = Device("CPU", "cpu", 256 * GIB, 256 * GIB)
BASE = Configuration(Path("m.gguf"), 4096)


def file_of(tmp_path: Path, values: dict[str, object], *tensors: tuple[str, int]) -> GgufFile:
    table, at = [], 0
    for name, n_elements in tensors:
        table.append((name, (n_elements,), 0, at))
        at += -(-n_elements * 4 // 32) * 32
    return read_gguf(write(tmp_path / "f.gguf", header(values, table), data_bytes=at))


@pytest.fixture
def projector(tmp_path: Path) -> GgufFile:
    values = {
        "general.architecture": "clip",
        "clip.vision.embedding_length": 1152,
        "clip.vision.image_size": 896,
        "clip.vision.patch_size": 14,
    }
    return file_of(tmp_path, values, ("v.patch_embd.weight", 6400), ("mm.0.weight", 1600))


@pytest.fixture
def adapter(tmp_path: Path) -> GgufFile:
    values = {"general.architecture": "llama", "general.type": "adapter"}
    lora = "attn_q.weight.lora_a"
    return file_of(
        tmp_path, values, (f"blk.0.{lora}", 800), (f"blk.31.{lora}", 1600), ("output.lora_b", 400)
    )


def planned(companions: Companions, **changes: object) -> Estimate:
    model = find_entry("llama-3.1-8b").model()
    now = replace(BASE, **changes)  # type: ignore[arg-type]  # tests say fields by name
    return estimate(model, now, (GPU, CPU), target="llama-server", companions=companions)


def held(found: Estimate, kind: TermKind) -> list[int]:
    return [device.term(kind).nbytes for device in found.devices]


def test_a_projector_lies_on_the_first_gpu_with_the_graph_of_an_image(projector: GgufFile) -> None:
    graph = 64 * 64 * 1152 * 10 * 4
    assert projector_graph_bytes(projector) == graph
    path = {"mmproj_path": Path("mmproj.gguf")}
    found = planned(Companions(projector=projector), **path)
    assert held(found, TermKind.PROJECTOR) == [8000 * 4 + graph, 0]
    off = planned(Companions(projector=projector), **path, mmproj_offload=False)
    assert held(off, TermKind.PROJECTOR) == [0, 8000 * 4 + graph]
    term = found.devices[0].term(TermKind.PROJECTOR)
    assert term.low_bytes == 8000 * 4 + round(0.4 * graph)


def test_small_images_have_fewer_patches(projector: GgufFile) -> None:
    values = {**projector.values, "clip.vision.image_size": 224}
    assert projector_graph_bytes(replace(projector, values=values)) == 16 * 16 * 1152 * 10 * 4


def test_an_adapter_lies_beside_the_layers_that_it_changes(adapter: GgufFile) -> None:
    path = {"lora_paths": (Path("lora.gguf"),)}
    whole = planned(Companions(adapters=(adapter,)), **path)
    assert held(whole, TermKind.ADAPTERS) == [2800 * 4, 0]
    part = planned(Companions(adapters=(adapter,)), **path, n_gpu_layers=2)
    assert held(part, TermKind.ADAPTERS) == [2000 * 4, 800 * 4]
    twice = planned(Companions(adapters=(adapter, adapter)), **path)
    assert held(twice, TermKind.ADAPTERS) == [5600 * 4, 0]
