"""What a plan warns of, and the positions that a context beyond training needs."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, TensorOverride
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.terms import Target
from engine.memory.units import GIB
from engine.memory.warnings import rope_warnings
from engine.model.architecture import Model
from tests.support.made_models import shape_named

GPU = Device("GPU", "gpu", 80 * GIB, 80 * GIB)
CPU = Device("CPU", "cpu", 256 * GIB, 256 * GIB)


def warnings(name: str, target: Target = "llama-server", **fields: object) -> str:
    configuration = Configuration(Path("m.gguf"), 8192, **fields)  # type: ignore[arg-type]
    model = shape_named(name).model()
    return "\n".join(estimate(model, configuration, (GPU, CPU), target=target).warnings)


def test_a_plain_configuration_has_nothing_to_warn_of() -> None:
    assert warnings("qwen3-8b") == ""
    assert warnings("qwen3-8b", type_k="q8_0", type_v="q8_0") == ""


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("qwen3-8b", {"type_k": "q8_0"}, "no kernel"),
        ("qwen3-8b", {"type_k": "iq4_nl", "type_v": "iq4_nl"}, "use q4_0"),
        ("qwen3-8b", {"type_k": "q8_0", "flash_attention": "off"}, "cannot be quantised"),
        ("qwen3-8b", {"offload_kqv": False}, "in RAM"),
        ("qwen3-30b-a3b", {"n_cpu_moe": 4}, "--load-mode none"),
        ("qwen3-8b", {"n_cpu_moe": 4}, "no experts"),
        ("qwen3-8b", {"tensor_overrides": (TensorOverride("ffn"),)}, "--load-mode none"),
    ],
)
def test_settings_that_llama_cpp_accepts_but_runs_badly_are_warned_of(
    name: str, fields: dict[str, object], words: str
) -> None:
    assert words in warnings(name, **fields)


@pytest.fixture
def model() -> Model:
    return shape_named("qwen2.5-7b").model()


def test_beyond_training_the_factor_covers_the_context(model: Model) -> None:
    trained = model.architecture.n_ctx_train
    assert not [*rope_warnings(model, trained, is_kvchat=False)]
    flags = f"--rope-scale 3.25 --yarn-orig-ctx {trained}"
    assert flags in "".join(rope_warnings(model, 3 * trained + 256, is_kvchat=False))


def test_a_scaled_model_counts_from_its_original_context(model: Model) -> None:
    key = "qwen2.rope.scaling.original_context_length"
    file = replace(model.file, values={**model.file.values, key: 8192})
    scaled = "".join(rope_warnings(replace(model, file=file), 131072, is_kvchat=True))
    assert "--rope-scale 16 --yarn-orig-ctx 8192" in scaled
