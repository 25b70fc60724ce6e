"""What llama.cpp stops on is refused with the reason, and nothing else is."""

from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import PresetError, WorkerError
from engine.memory.dry_run import DryRun
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import Model
from tests.support.filled_models import SHAPES
from tests.support.made_models import made_headers, made_model, shape_named, written_model

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)


def t5(folder: Path) -> Model:
    return written_model(folder / "m.gguf", made_headers()["rare t5"])


def is_refused(model: Model, configuration: Configuration) -> bool:
    try:
        estimate(model, configuration, (CPU,), target="llama-server")
    except PresetError as error:
        return "llama.cpp aborts" in str(error)
    return False


def stops(dry_run: DryRun, configuration: Configuration) -> bool:
    try:
        dry_run.measure(configuration, "llama-server")
    except WorkerError as error:
        return "llama.cpp crashed" in str(error)
    return False


@pytest.mark.model
@pytest.mark.parametrize("name", ["kimi-linear-48b-a3b", "minimax-text-01"])
@pytest.mark.parametrize(("n_slots", "kv_unified"), [(3, False), (3, True), (4, False)])
def test_slots_that_do_not_share_a_ubatch_evenly_are_refused(
    name: str, n_slots: int, *, kv_unified: bool, tmp_path: Path, dry_run: DryRun
) -> None:
    path = tmp_path / "m.gguf"
    model = written_model(path, shape_named(name))
    now = Configuration(path, 4096, n_slots=n_slots, kv_unified=kv_unified)
    is_uneven = n_slots == 3 and not kv_unified
    assert is_refused(model, now) == stops(dry_run, now) == is_uneven


@pytest.mark.model
def test_position_biases_are_refused_for_slots_with_caches_of_their_own(
    tmp_path: Path, dry_run: DryRun
) -> None:
    model = t5(tmp_path)
    for n_slots, kv_unified in ((1, False), (4, True), (4, False)):
        now = Configuration(model.file.path, 4096, n_slots=n_slots, kv_unified=kv_unified)
        assert is_refused(model, now) == stops(dry_run, now) == (n_slots > 1 and not kv_unified)


@pytest.mark.model
def test_heads_that_share_no_key_head_evenly_are_refused(tmp_path: Path, dry_run: DryRun) -> None:
    values = {**SHAPES["llama"], "attention.head_count_kv": 3}
    model = made_model(tmp_path / "m.gguf", "llama", values)
    now = Configuration(model.file.path, 4096)
    assert is_refused(model, now)
    assert stops(dry_run, now)
