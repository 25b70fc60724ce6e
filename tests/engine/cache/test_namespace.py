"""States are shared by settings that compute the same numbers, and by no others."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from engine.cache.namespace import Namespace, namespace_of
from engine.configuration import Adapter, Configuration, SamplingSettings, TensorOverride
from tests.support.gguf_files import header, llama_values, write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", header(llama_values()))


@pytest.fixture
def usual(model: Path) -> Configuration:
    return Configuration(model, n_ctx=2048)


def named(
    configuration: Configuration, state_format: str = "made 1", gpus: tuple[str, ...] = ()
) -> Namespace:
    return namespace_of(
        configuration,
        state_format=state_format,
        hash_file=lambda path: sha256(path.read_bytes()).hexdigest(),
        gpus=gpus,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"type_k": "q8_0"},
        {"type_v": "q8_0"},
        {"flash_attention": "on"},
        {"n_slots": 2},
        {"swa_full": True},
        {"use_extra_buffers": False},
        {"n_ctx": 4097},
    ],
)
def test_settings_that_change_the_numbers_make_another_namespace(
    usual: Configuration, change: dict[str, object]
) -> None:
    assert named(replace(usual, **change)).key != named(usual).key  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"n_ctx": 4096},
        {"n_batch": 512, "n_ubatch": 64},
        {"n_threads": 3, "n_threads_batch": 4},
        {"use_mmap": False},
        {"n_gpu_layers": 7},
        {"kv_unified": True},
        {"sampling": SamplingSettings(temperature=1.0)},
    ],
)
def test_other_settings_make_no_other_namespace(
    usual: Configuration, change: dict[str, object]
) -> None:
    assert named(replace(usual, **change)) == named(usual)  # type: ignore[arg-type]


def test_the_training_length_holds_for_one_sequence(usual: Configuration) -> None:
    within = replace(usual, n_slots=2, n_ctx=8192)
    beyond = replace(within, n_slots=1)
    assert dict(named(within).fields)["rope"] == "of the model"
    assert dict(named(beyond).fields)["rope"] == "of the model, beyond its training"


def test_offload_counts_where_there_is_a_gpu(usual: Configuration) -> None:
    gpus = ("CUDA0",)
    names = {
        named(usual, gpus=gpus).key,
        named(usual).key,
        named(replace(usual, n_gpu_layers=7), gpus=gpus).key,
        named(replace(usual, offload_kqv=False), gpus=gpus).key,
        named(replace(usual, n_cpu_moe=2), gpus=gpus).key,
        named(replace(usual, tensor_overrides=(TensorOverride("exps"),)), gpus=gpus).key,
        named(usual, gpus=("Vulkan0",)).key,
    }
    assert len(names) == 7
    assert named(replace(usual, n_gpu_layers=0), gpus=gpus) == named(replace(usual, n_gpu_layers=0))


def test_another_build_is_another_namespace(usual: Configuration) -> None:
    assert named(usual, "made 2").key != named(usual).key


def test_a_moved_model_keeps_its_namespace_and_a_changed_one_does_not(
    usual: Configuration, model: Path
) -> None:
    before = named(usual)
    moved = model.rename(model.with_name("moved.gguf"))
    after = named(replace(usual, model_path=moved))
    assert after.key == before.key
    assert before.is_orphaned
    assert not after.is_orphaned
    with moved.open("ab") as file:
        file.write(b"fine-tuned")
    assert named(replace(usual, model_path=moved)).key != before.key


def test_adapters_count_by_content_and_order(usual: Configuration, tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    keys = {
        named(replace(usual, adapters=tuple(map(Adapter, paths)))).key
        for paths in ((), (first,), (second,), (first, second), (second, first))
    }
    assert len(keys) == 5


def test_a_model_in_an_unreadable_folder_does_not_count_as_deleted(
    usual: Configuration, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = named(usual)
    assert not namespace.is_orphaned

    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        assert not namespace.is_orphaned
    model.unlink()
    assert namespace.is_orphaned
    assert replace(namespace, model="a\0b").is_orphaned
