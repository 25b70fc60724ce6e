"""Facts of headers are cached for the newest models only."""

import gc
from dataclasses import replace
from pathlib import Path

from engine.configuration import Configuration
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import read_model
from engine.model.gguf import MAX_CACHED_MODELS, GgufFile

DEVICES = (Device("GPU", "gpu", GIB, GIB), Device("CPU", "cpu", GIB, GIB))


def test_headers_of_many_models_do_not_stay_in_memory(starter_path: Path) -> None:
    starter = read_model(starter_path)
    for number in range(3 * MAX_CACHED_MODELS):
        model = replace(starter, file=replace(starter.file, path=Path(f"many-{number}.gguf")))
        estimate(model, Configuration(model.file.path, 512, n_gpu_layers=9), DEVICES)
    gc.collect()
    alive = {
        each.path.name
        for each in gc.get_objects()
        if type(each) is GgufFile and each.path.name.startswith("many-")
    }
    assert f"many-{number}.gguf" in alive, "the newest is cached"
    assert len(alive) <= MAX_CACHED_MODELS
