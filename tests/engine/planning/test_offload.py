import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engine.configuration import (
    Configuration,
    DraftConfiguration,
    PredictorName,
    SpeculationSettings,
    TensorOverride,
)
from engine.errors import PresetError
from engine.memory.estimate import Estimate, estimate
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.model.architecture import Model
from engine.model.catalog import find_entry
from engine.planning.fit import configuration_rows
from engine.planning.offload import (
    Offload,
    OffloadLevel,
    fastest_fitting,
    level_text,
    offload_levels,
)
from tests.engine.planning.shapes import RAM, dense_model, gpu, small_mixture

CARD = (gpu(24), RAM)


@pytest.fixture(params=["dense", "experts"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    if request.param == "experts":
        return small_mixture(tmp_path)
    return dense_model(tmp_path, n_layers=5, d_hidden=512, n_vocab=4096)


def test_offload_modes_are_ends_of_the_levels(model: Model) -> None:
    levels = offload_levels(model, CARD, Offload.PARTIAL)
    assert offload_levels(model, CARD, Offload.NONE) == (OffloadLevel(-1),) == levels[:1]
    assert offload_levels(model, CARD, Offload.FULL) == levels[-1:]
    assert levels[-1].n_gpu_layers == 0
    alone = [each.n_cpu_moe for each in levels if each.n_gpu_layers < 0]
    n_layers = model.architecture.n_layers
    assert alone == ([*range(n_layers), -1] if model.architecture.is_moe else [0])
    assert offload_levels(model, (RAM,), Offload.PARTIAL) == (OffloadLevel(-1),)


@pytest.mark.parametrize("sizes", [(8,), (12,), (24,), (6, 16), (10, 10, 4)])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "llama-3.1-8b", "llama-3.1-70b"])
def test_the_first_level_that_fits_is_found_with_few_estimates(
    name: str, sizes: tuple[float, ...]
) -> None:
    found = find_entry(name).model()
    ram = replace(RAM, free_bytes=40 * GIB)
    devices = (*(replace(gpu(each), name=f"GPU {n}") for n, each in enumerate(sizes)), ram)
    now, asked = Configuration(found.file.path, 8192), []

    def cost(each: Configuration) -> Estimate:
        asked.append(each)
        return estimate(found, each, devices)

    levels = offload_levels(found, devices, Offload.PARTIAL)
    best = fastest_fitting(now, levels, cost, GIB)
    n_asked = len(set(asked))
    in_turn = (level.of(now) for level in levels)
    assert best == next((each for each in in_turn if cost(each).fits(GIB)), None)
    assert len(sizes) > 1 or n_asked <= 16


def test_each_level_is_slower_and_leaves_less_on_the_gpu_than_the_one_before(
    model: Model,
) -> None:
    base = Configuration(model.file.path, 4096)
    found = offload_levels(model, CARD, Offload.PARTIAL)
    held = []
    for level in found:
        on_gpu = estimate(model, level.of(base), CARD).devices[0]
        held.append(on_gpu.term(TermKind.WEIGHTS).nbytes + on_gpu.term(TermKind.KV).nbytes)
    assert all(before > after for before, after in pairwise(held))
    assert held[-1] == 0
    slowness = [level.slowness for level in found]
    assert slowness == sorted(slowness)
    assert slowness[0] == 0


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ((0, 0), "all layers in RAM"),
        ((-1, 0), "all layers on the GPU"),
        ((49, 0), "all layers on the GPU"),
        ((48, 0), "1 of 48 layers in RAM"),
        ((40, -1), "all experts and 9 of 48 layers in RAM"),
        ((-1, 12), "experts of 12 of 48 layers in RAM"),
        ((-1, -1), "experts of 48 of 48 layers in RAM"),
    ],
)
def test_a_level_in_words(level: tuple[int, int], words: str) -> None:
    assert level_text(*level, find_entry("qwen3-30b-a3b").model()) == words


def test_a_configuration_in_words() -> None:
    model = find_entry("qwen3-30b-a3b").model()
    now = Configuration(model.file.path, 8192, n_gpu_layers=-1)
    rows = dict(configuration_rows(now, model))
    assert rows == {
        "context": "8,192 tokens", "cache": "f16", "layers": "all layers on the GPU",
        "batch": "2048, ubatches of 512", "drafts": "lookup in the chat so far",
    }  # fmt: skip
    other = replace(
        now, n_slots=4, type_k="q8_0", type_v="q4_0", n_cpu_moe=12, tensor_split=(3.0, 1.0),
        speculation=SpeculationSettings(predictor=PredictorName.OFF),
    )  # fmt: skip
    assert dict(configuration_rows(other, model)) == {
        **rows, "context": "8,192 tokens, 2,048 for each of 4 slots",
        "cache": "keys q8_0, values q4_0", "layers": "experts of 12 of 48 layers in RAM",
        "split": "3 : 1 across the GPUs", "drafts": "none",
    }  # fmt: skip
    drafted = replace(now, draft=DraftConfiguration(Path("small.gguf"), 512))
    assert dict(configuration_rows(drafted, model))["drafts"] == "by small.gguf"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split_mode": "none", "main_gpu": 2}, "main_gpu is 2"),
        ({"tensor_split": (1.0, 1.0, 1.0)}, "tensor_split has 3 shares"),
        ({"tensor_overrides": (TensorOverride("ffn", "GPU 7"),)}, "GPU 7"),
        ({"tensor_overrides": (TensorOverride("ffn", "card"),)}, "'card' is not a device"),
        ({"tensor_overrides": (TensorOverride("ffn_(", "CPU"),)}, "ffn_"),
    ],
)
def test_what_the_devices_lack_is_refused(changes: dict[str, object], words: str) -> None:
    model = find_entry("llama-3.1-8b").model()
    now = replace(Configuration(model.file.path, 4096), **changes)  # type: ignore[arg-type]
    devices = (gpu(24), replace(gpu(24), name="GPU 1"), RAM)
    with pytest.raises(PresetError, match=re.escape(words)):
        estimate(model, now, devices)


def test_an_override_moves_tensors_to_the_device_that_it_names() -> None:
    model = find_entry("llama-3.1-8b").model()
    devices = (gpu(24), replace(gpu(24), name="GPU 1"), RAM)

    def weights(*rules: TensorOverride) -> list[int]:
        now = Configuration(model.file.path, 4096, n_gpu_layers=-1, tensor_overrides=rules)
        found = estimate(model, now, devices).devices
        return [each.term(TermKind.WEIGHTS).nbytes for each in found]

    plain, moved = weights(), weights(TensorOverride("ffn", "CUDA1"))
    assert moved[0] < plain[0]
    assert moved[1] > plain[1]
    assert weights(TensorOverride("ffn", "cpu"))[2] > plain[2]
