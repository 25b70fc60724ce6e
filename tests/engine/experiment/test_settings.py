"""What is tried with a configuration on a machine, and how long runs are."""

from dataclasses import replace

import pytest

from engine.configuration import Configuration
from engine.experiment.tuner import SETTINGS, Scope, Sizes, sizes_for, thread_counts, trials_of
from tests.engine.experiment.fake_machine import CPU, START

SIZES = Sizes(run_s=0.5, n_prompt=256, n_deep=1024)
NOW = replace(START, n_threads=4, n_threads_batch=4)


def tried(now: Configuration = NOW, scope: Scope = CPU) -> dict[str, list[str]]:
    trials = {each: trials_of(each, now, scope, SIZES) for each in SETTINGS}
    return {name: [trial.label for trial in each] for name, each in trials.items() if each}


def test_flash_attention_stays_where_the_model_or_the_cache_needs_it() -> None:
    assert tried()["flash attention"] == ["off"]
    assert tried(replace(NOW, flash_attention="off"))["flash attention"] == ["on"]
    assert "flash attention" not in tried(replace(NOW, type_v="q8_0"))
    assert "flash attention" not in tried(scope=replace(CPU, has_flash_attention=False))


def test_ubatches_are_those_that_the_prompt_fills() -> None:
    assert tried()["ubatch"] == ["64 tokens", "128 tokens"]  # 256 is as the 512 of now
    assert tried(replace(NOW, n_ubatch=64))["ubatch"] == ["128 tokens", "256 tokens"]
    assert tried(replace(NOW, n_batch=128))["ubatch"] == ["64 tokens", "128 tokens"]


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
    assert sizes_for(5000.0, 180.0, 8192) == Sizes(0.25, 1024, 2048)
    assert sizes_for(10.0, 180.0, 8192) == Sizes(0.25, 16, 512)
    assert sizes_for(5000.0, 1440.0, 8192).run_s == 2.0
    small = sizes_for(5000.0, 180.0, 256)
    assert small.n_deep <= 128
    assert small.n_prompt <= 64
