from dataclasses import replace
from pathlib import Path

import pytest

from engine.memory.rope import RopeScaling, rope_scaling, rope_warning
from engine.model.architecture import Model, read_model
from engine.model.catalog import find_entry


@pytest.fixture
def model() -> Model:
    return find_entry("qwen2.5-7b").model()


def test_within_training_nothing_is_scaled(model: Model) -> None:
    assert rope_scaling(model, model.architecture.n_ctx_train) is None
    assert rope_warning(model, 4096, "llama-server") is None


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
    server = rope_warning(starter, 16384, "llama-server")
    assert server is not None
    assert "--rope-scaling yarn --rope-scale 2 --yarn-orig-ctx 8192" in server
    assert "cuts each slot to 8,192 tokens" in server
    assert "kvchat does not scale" in str(rope_warning(starter, 16384, "kvchat"))
