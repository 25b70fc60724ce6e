"""MTP heads as in dry runs of llama.cpp, projectors and adapters."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Adapter, Configuration, PredictorName, SpeculationSettings
from engine.memory.estimate import Companions, Estimate, estimate, projector_graph_bytes
from engine.memory.hardware import Device
from engine.memory.terms import Target, TermKind
from engine.memory.units import GIB, MIB
from engine.model.catalog import find_entry
from engine.model.gguf import GgufFile, read_gguf
from tests.support.gguf_files import header, write

GPU = Device("GPU 0", "gpu", 80 * GIB, 80 * GIB)
CPU = Device("CPU", "cpu", 900 * GIB, 900 * GIB)
BASE = Configuration(Path("m.gguf"), 4096)
OFF = SpeculationSettings(predictor=PredictorName.OFF)
PLAIN = Configuration(Path("m.gguf"), 32768, flash_attention="on", speculation=OFF)


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
        "clip.vision.feed_forward_length": 4304,
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
    now = replace(BASE, **changes)  # type: ignore[arg-type]  # fields by name
    return estimate(model, now, (GPU, CPU), target="llama-server", companions=companions)


def held(found: Estimate, kind: TermKind) -> list[int]:
    return [device.term(kind).nbytes for device in found.devices]


def test_a_projector_lies_on_the_first_gpu_with_the_graph_of_an_image(projector: GgufFile) -> None:
    graph = 64 * 64 * (4304 + 2 * 1152) * 4
    assert projector_graph_bytes(projector) == graph
    path = {"mmproj_path": Path("mmproj.gguf")}
    found = planned(Companions(projector=projector), **path)
    assert held(found, TermKind.PROJECTOR) == [8000 * 4 + graph, 0]
    off = planned(Companions(projector=projector), **path, mmproj_offload=False)
    assert held(off, TermKind.PROJECTOR) == [0, 8000 * 4 + graph]
    term = found.devices[0].term(TermKind.PROJECTOR)
    assert term.range[0] == 8000 * 4 + round(0.4 * graph)


@pytest.mark.parametrize(
    ("values", "measured_mib"),
    [
        ({"clip.projector_type": "qwen3vl_merger", "clip.vision.image_size": 768,
          "clip.vision.patch_size": 16, "clip.vision.spatial_merge_size": 2}, 480),
        ({"clip.vision.embedding_length": 1536, "clip.vision.feed_forward_length": 4224,
          "clip.vision.image_size": None, "clip.projector_type": "dots_ocr"}, 350),
    ],
)  # fmt: skip
def test_the_graph_is_that_of_the_largest_image_that_llama_server_takes(
    projector: GgufFile, values: dict[str, object], measured_mib: int
) -> None:
    known = {key: value for key, value in {**projector.values, **values}.items() if value}
    found = planned(
        Companions(projector=replace(projector, values=known)),  # type: ignore[arg-type]  # made here
        mmproj_path=Path("mmproj.gguf"),
    )
    low, high = found.devices[0].term(TermKind.PROJECTOR).range
    assert low <= measured_mib * MIB <= high


def test_an_adapter_lies_beside_the_layers_that_it_changes(adapter: GgufFile) -> None:
    path = {"adapters": (Adapter(Path("lora.gguf")),)}
    whole = planned(Companions(adapters=(adapter,)), **path)
    assert held(whole, TermKind.ADAPTERS) == [2800 * 4, 0]
    part = planned(Companions(adapters=(adapter,)), **path, n_gpu_layers=2)
    assert held(part, TermKind.ADAPTERS) == [2000 * 4, 800 * 4]
    twice = planned(Companions(adapters=(adapter, adapter)), **path)
    assert held(twice, TermKind.ADAPTERS) == [5600 * 4, 0]


def headed(name: str, n_draft: int, target: Target = "llama-server", **fields: object) -> Estimate:
    now = replace(PLAIN, n_mtp_draft=n_draft, **fields)  # type: ignore[arg-type]
    return estimate(find_entry(name).model(), now, (CPU,), target=target)


def term(found: Estimate, kind: TermKind) -> int:
    return found.devices[0].term(kind).nbytes


@pytest.mark.parametrize(
    ("name", "kv_mib", "graph_mib"),
    [("qwen3.6-27b", 128, 130), ("glm-4.5-air", 128, 148), ("deepseek-v3.2", 36, 399)],
)
def test_the_head_keeps_a_cache_and_a_graph_of_its_own(
    name: str, kv_mib: int, graph_mib: int
) -> None:
    graph = term(headed(name, 3), TermKind.DRAFT) / MIB - kv_mib
    assert 0.8 * graph_mib <= graph <= 1.25 * graph_mib
    half = term(headed(name, 3, n_ctx=16384), TermKind.DRAFT) / MIB
    assert graph + kv_mib - half > kv_mib / 2 - 1
    assert term(headed(name, 0), TermKind.DRAFT) == 0


def test_the_heads_weights_are_loaded_for_it_alone() -> None:
    with_head, without = headed("glm-4.5-air", 3), headed("glm-4.5-air", 0)
    head = [t for t in find_entry("glm-4.5-air").model().file.tensors if "blk.46." in t.name]
    added = term(with_head, TermKind.WEIGHTS) - term(without, TermKind.WEIGHTS)
    assert abs(added - sum(tensor.nbytes for tensor in head)) <= 32 * len(head)


def test_states_keep_a_row_for_every_token_that_may_be_taken_back() -> None:
    plain, drafting = headed("qwen3.6-27b", 0), headed("qwen3.6-27b", 3)
    assert term(plain, TermKind.STATE) == round(149.625 * MIB)
    assert term(drafting, TermKind.STATE) == round(598.5 * MIB)
    assert term(headed("qwen3.6-27b", 0, n_slots=4), TermKind.STATE) == round(598.5 * MIB)


def test_kvchat_does_not_draft_with_the_head() -> None:
    assert headed("qwen3.6-27b", 3, "kvchat").devices == headed("qwen3.6-27b", 0, "kvchat").devices
