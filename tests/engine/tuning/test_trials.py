"""What is tried with a configuration on a machine."""

from dataclasses import replace

import pytest

from engine.configuration import Configuration
from engine.tuning.trials import Scope, WorkloadSizes, setting_groups, sizes_for, thread_counts
from tests.engine.tuning.fake_machine import CPU, START

SIZES = WorkloadSizes(n_prompt=256, n_written=16, n_deep=1024)
NOW = replace(START, n_threads=4, n_threads_batch=4)
GPU = replace(CPU, has_gpu=True)


def tried(now: Configuration = NOW, scope: Scope = CPU) -> dict[str, list[str]]:
    groups = setting_groups(now, scope, SIZES)
    return {group.name: [trial.label for trial in group.trials] for group in groups}


def test_nothing_is_tried_that_is_as_now() -> None:
    for now, scope in ((NOW, CPU), (replace(NOW, n_gpu_layers=0, use_mmap=False), GPU)):
        for group in setting_groups(now, scope, SIZES):
            assert all(trial.of(now) != now for trial in group.trials), group.name


def test_flash_attention_stays_where_the_model_or_the_cache_needs_it() -> None:
    assert tried()["flash attention"] == ["off"]
    assert tried(replace(NOW, flash_attention="off"))["flash attention"] == ["on"]
    assert "flash attention" not in tried(replace(NOW, type_v="q8_0"))
    assert "flash attention" not in tried(scope=replace(CPU, has_flash_attention=False))


def test_weights_are_repacked_on_the_processor_only() -> None:
    assert tried()["repacked weights"] == ["off"]
    assert tried(replace(NOW, use_extra_buffers=False))["repacked weights"] == ["on"]
    assert "repacked weights" not in tried(scope=GPU)
    assert "repacked weights" in tried(replace(NOW, n_gpu_layers=3), GPU)


def test_micro_batches_are_those_that_the_prompt_fills() -> None:
    assert tried()["micro-batch"] == ["64 tokens", "128 tokens"]  # 256 is as the 512 of now
    assert tried(replace(NOW, n_ubatch=64))["micro-batch"] == ["128 tokens", "256 tokens"]
    assert tried(replace(NOW, n_batch=128))["micro-batch"] == ["64 tokens", "128 tokens"]


def test_layers_of_a_gpu_are_all_half_and_none() -> None:
    assert "layers on the GPU" not in tried()
    assert tried(scope=GPU)["layers on the GPU"] == ["15", "none"]
    assert tried(replace(NOW, n_gpu_layers=31), GPU)["layers on the GPU"] == ["15", "none"]
    assert tried(replace(NOW, n_gpu_layers=0), GPU)["layers on the GPU"] == ["all", "15"]


@pytest.mark.parametrize(
    ("n_cores", "n_logical", "counts"),
    [
        (1, 1, (1,)),
        (2, 4, (1, 2, 3, 4)),
        (8, 16, (2, 4, 6, 8, 16)),
        (64, 64, (16, 32, 48, 64)),
    ],
)
def test_many_cores_are_tried_by_shares(
    n_cores: int, n_logical: int, counts: tuple[int, ...]
) -> None:
    assert thread_counts(replace(CPU, n_cores=n_cores, n_logical=n_logical)) == counts


def test_sizes_follow_speed_time_and_context() -> None:
    quick = sizes_for(5000.0, 200.0, 180.0, 32768)
    slow = sizes_for(10.0, 2.0, 180.0, 32768)
    assert (quick.n_prompt, quick.n_written, quick.n_deep) == (1024, 50, 4096)
    assert (slow.n_prompt, slow.n_written, slow.n_deep) == (32, 4, 256)
    assert sizes_for(5000.0, 200.0, 3600.0, 32768).n_written == 64
    small = sizes_for(5000.0, 200.0, 180.0, 512)
    assert small.n_deep <= 256
    assert small.n_ctx % 256 == 0
    assert quick.n_ctx >= 2 * quick.n_deep
