from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.memory.warnings import RopeScaling, rope_scaling, rope_warning
from engine.model.architecture import Model, read_model
from engine.model.catalog import find_entry


@pytest.fixture
def model() -> Model:
    return find_entry("qwen2.5-7b").model()


def test_within_training_nothing_is_scaled(model: Model) -> None:
    assert rope_scaling(model, model.architecture.n_ctx_train) is None
    assert rope_warning(model, 4096, is_kvchat=False) is None


def test_beyond_training_the_factor_covers_the_context(model: Model) -> None:
    trained = model.architecture.n_ctx_train
    scaling = rope_scaling(model, 3 * trained + 256)
    assert scaling == RopeScaling(3.25, trained)
    assert scaling.arguments == [
        "--rope-scaling", "yarn", "--rope-scale", "3.25", "--yarn-orig-ctx", str(trained),
    ]  # fmt: skip


def test_a_model_that_is_scaled_already_counts_from_its_original_context(model: Model) -> None:
    key = "qwen2.rope.scaling.original_context_length"
    file = replace(model.file, values={**model.file.values, key: 8192})
    assert rope_scaling(replace(model, file=file), 131072) == RopeScaling(16.0, 8192)


def test_each_program_is_told_what_it_would_do(starter_path: Path) -> None:
    starter = read_model(starter_path)
    server = rope_warning(starter, 16384, is_kvchat=False)
    assert server is not None
    assert "--rope-scaling yarn --rope-scale 2 --yarn-orig-ctx 8192" in server
    assert "cuts each slot to 8,192" in server
    here = rope_warning(starter, 16384, is_kvchat=True)
    assert "llama-server can scale RoPE with --rope-scaling yarn" in str(here)


def test_a_plan_warns_of_it(starter_path: Path) -> None:
    starter = read_model(starter_path)
    far = Configuration(starter_path, 16384)
    devices = (Device("CPU", "cpu", GIB, GIB),)
    for target, said in (("kvchat", "replies get worse"), ("llama-server", "cuts each slot")):
        found = estimate(starter, far, devices, target=target)  # type: ignore[arg-type]
        assert any(said in warning for warning in found.warnings)
    near = replace(far, n_ctx=8192)
    assert not any("trained" in w for w in estimate(starter, near, devices).warnings)
