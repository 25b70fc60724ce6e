"""Buffers as llama.cpp lays them out; expected is what its dry run said (0c1e57098).

Headers of the catalogue were written by `benchmarks/accuracy_models.py` and asked through
`benchmarks/accuracy_truth.py`; GPUs are `benchmarks/stand_in_gpu.cpp`.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.estimate import estimate, shape_for
from engine.memory.hardware import Device
from engine.memory.layout import Devices, laid_out_bytes
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.model.architecture import Model, architecture_of
from engine.model.catalog import find_entry

GPUS = tuple(Device(f"GPU {i}", "gpu", 24 * GIB, 24 * GIB) for i in range(2))
CPU = Device("CPU", "cpu", 256 * GIB, 256 * GIB)
BASE = Configuration(Path("m.gguf"), 8192, flash_attention="on")
ROUNDING_BYTES = 128 * 1024
"""Rows of logits are told by how far the process grew, in pages."""


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("llama-3.1-8b", {}, [138770442]),
        ("llama-3.1-8b", {"flash_attention": "off"}, [608528394]),
        ("llama-3.1-8b", {}, [121645184, 33912842]),
        ("llama-3.1-8b", {"n_gpu_layers": 20}, [142084352, 33912842]),
        ("llama-3.1-8b", {"n_gpu_layers": 0}, [142084352, 33912842]),
        ("llama-3.1-8b", {"n_gpu_layers": 20, "n_batch": 16, "n_ubatch": 16}, [8470528, 12798314]),
        ("llama-3.1-8b", {"n_gpu_layers": 1, "n_batch": 8, "n_ubatch": 8}, [4235264, 10766474]),
        ("llama-3.1-8b", {}, [180396032, 213950976, 84281642]),
        ("llama-3.1-8b", {"offload_kqv": False, "n_ctx": 131072}, [704645120, 159741962]),
        (
            "llama-3.1-8b",
            {"n_ctx": 131072, "type_k": "bf16", "type_v": "bf16"},
            [713042048, 159741962],
        ),
        ("llama-3.1-8b", {"type_k": "iq4_nl", "type_v": "iq4_nl"}, [104949760, 51820554]),
        ("llama-3.1-8b", {"offload_kqv": False, "flash_attention": "off"}, [603981824, 46491658]),
        ("gpt-oss-20b", {"n_cpu_moe": -1}, [217561216, 34717964]),
        ("phi-3-mini-4k", {"n_ctx": 2048, "offload_kqv": False}, [73402368, 35681333]),
        ("gpt2", {"n_ctx": 1024}, [12066944, 9166445]),
        ("gemma-3-12b", {"type_k": "q8_0", "type_v": "q8_0"}, [192094208, 223552000, 99303808]),
        ("falcon-h1-7b", {}, [99625216, 29896832]),
        ("jamba-mini", {}, [214251648]),
        ("olmo-2-7b", {}, [116362379]),
        ("qwen3-30b-a3b", {"n_gpu_layers": 24}, [257949952, 27128558]),
        (
            "pythia-1.4b",
            {"n_gpu_layers": 12, "type_k": "f32", "type_v": "f32"},
            [218130432, 32743021],
        ),
        ("command-r-32b", {}, [243974068]),
        ("gemma-3n-e4b", {}, [185620576]),
        ("gemma-3n-e4b", {"tensor_split": (3.0, 1.0)}, [427892736, 580952576, 94986624]),
        ("gemma-3n-e4b", {"tensor_split": (1.0, 3.0)}, [427892736, 467771904, 94986624]),
        ("gemma-4-26b-a4b", {}, [110643328, 39342176]),
        ("qwen3-next-80b-a3b", {"n_cpu_moe": -1}, [910164096, 27128590]),
        ("qwen3.6-35b-a3b", {"n_gpu_layers": 20}, [309329920, 46409443]),
        ("rwkv-6-world-7b", {}, [124061824]),
        ("rwkv-7-world-2.9b", {}, [95899904, 14944384]),
        ("qrwkv6-32b", {}, [193483008, 31312654]),
        ("qwen3-vl-8b", {}, [178129646]),
        ("qwen3-vl-8b", {}, [134234240, 60689134]),
        ("qwen3-vl-8b", {"tensor_split": (1.0, 20.0)}, [201392128, 335413760, 186573838]),
        ("qwen3-vl-30b-a3b", {"n_gpu_layers": 24}, [270532864, 39717614]),
    ],
)
def test_every_buffer_is_as_large_as_llama_cpp_makes_it(
    name: str, changes: dict[str, object], expected: list[int]
) -> None:
    now = replace(BASE, **changes)  # type: ignore[arg-type]  # fields by name
    devices = (*GPUS[: len(expected) - 1], CPU)
    found = estimate(find_entry(name).model(), now, devices)
    *gpus, cpu = (device.term(TermKind.COMPUTE).nbytes for device in found.devices)
    assert gpus == expected[:-1]
    assert abs(cpu - expected[-1]) < ROUNDING_BYTES


def test_features_of_an_image_come_with_every_token_to_the_layers_that_the_header_names() -> None:
    file = find_entry("granite-swash-2b").model().file
    rows = (0, -1, 1, 2, -1, 3, *[-1] * 18)
    values = {**file.values, "granite_swa.deepstack_mapping": rows}
    file = replace(file, values=values)
    found = estimate(Model(file, architecture_of(file)), BASE, (GPUS[0], CPU))
    gpu, cpu = (device.term(TermKind.COMPUTE).nbytes for device in found.devices)
    assert gpu == 101468288
    assert abs(cpu - 47426699) < ROUNDING_BYTES


def alone(model: Model, n_ctx: int = 8192) -> list[int]:
    shape = shape_for(model.architecture, replace(BASE, n_ctx=n_ctx), "kvchat", (CPU,))
    return laid_out_bytes(model, shape, Devices(1, (0,) * model.architecture.n_layers, 0), 17)


def test_many_equal_layers_take_what_some_of_them_do() -> None:
    model = find_entry("llama-3.1-8b").model()
    (whole,) = alone(model)
    layers = dict(list(model.architecture.layers.items())[:5])
    few = replace(model.architecture, n_layers=5, n_blocks=5, layers=layers)
    assert alone(replace(model, architecture=few)) == [whole]


def test_models_whose_order_is_not_known_have_no_layout() -> None:
    assert alone(find_entry("deepseek-v3").model()) == []


def test_a_file_without_its_tensors_has_no_layout() -> None:
    model = find_entry("llama-3.1-8b").model()
    bare = replace(model, file=replace(model.file, tensors=()))
    assert alone(bare) == []
    some = tuple(t for t in model.file.tensors if "ffn_up" not in t.name)
    assert alone(replace(model, file=replace(model.file, tensors=some))) != [0]


def test_tensors_of_other_architectures_in_a_file_do_no_harm() -> None:
    model, mamba = find_entry("llama-3.1-8b").model(), find_entry("falcon-h1-7b").model()
    tensors = (*model.file.tensors, *mamba.file.tensors)
    assert alone(replace(model, file=replace(model.file, tensors=tensors)))[0] > 0
