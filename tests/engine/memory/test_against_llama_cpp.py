"""The formulas against llama.cpp's own dry run, on real models."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import PresetError, WorkerError
from engine.memory.compute import compute_bytes
from engine.memory.dry_run import DryRun
from engine.memory.estimate import cache_shape, n_outputs
from engine.memory.hardware import Device
from engine.memory.kv_cache import layer_kv_bytes
from engine.memory.terms import TARGETS
from engine.model.architecture import Model, read_model

pytestmark = pytest.mark.model

ROUNDING_BYTES = 2 * 5300
"""The log prints MiB with two decimals, once for each of at most two caches."""

CPU = Device("CPU", "cpu", 64 * 1024**3, 64 * 1024**3)
TYPES = (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("bf16", "f16"), ("q5_1", "iq4_nl"))
SLOTS = ((1, False), (3, False), (4, True))


@pytest.fixture(params=["starter", "gemma"])
def model(request: pytest.FixtureRequest, starter_path: Path, gemma_path: Path) -> Model:
    return read_model(starter_path if request.param == "starter" else gemma_path)


def configurations(model: Model) -> Iterator[Configuration]:
    for n_ctx, n_ubatch, (type_k, type_v), attention, (n_slots, unified), swa_full in product(
        (512, 5000, 16384), (128, 1024), TYPES, ("on", "off"), SLOTS, (False, True)
    ):
        yield Configuration(
            model_path=model.file.path,
            n_ctx=n_ctx,
            n_ubatch=n_ubatch,
            type_k=type_k,  # type: ignore[arg-type]  # literals of the table
            type_v=type_v,  # type: ignore[arg-type]
            flash_attention=attention,  # type: ignore[arg-type]
            n_slots=n_slots,
            kv_unified=unified,
            swa_full=swa_full,
        )


def test_cache_bytes_are_exact_and_refusals_agree(model: Model, dry_run: DryRun) -> None:
    for configuration in configurations(model):
        try:
            sizes = layer_kv_bytes(model.architecture, cache_shape(configuration))
        except PresetError:
            with pytest.raises(WorkerError):
                dry_run.measure(configuration, "llama-server")
            continue
        buffers = dry_run.measure(configuration, "llama-server")
        measured = sum(buffer.nbytes for buffer in buffers if buffer.kind == "KV")
        assert abs(sum(sizes.values()) - measured) <= ROUNDING_BYTES, configuration


def test_compute_buffers_are_as_large_as_llama_cpp_s(model: Model, dry_run: DryRun) -> None:
    for target, configuration in product(TARGETS, configurations(model)):
        if configuration.type_v != "f16" and configuration.flash_attention == "off":
            continue
        shape = cache_shape(configuration)
        formula = compute_bytes(model.architecture, shape, n_outputs(configuration, target))
        buffers = dry_run.measure(configuration, target)
        measured = sum(buffer.nbytes for buffer in buffers if buffer.kind == "compute")
        assert abs(formula - measured) <= 0.09 * measured + ROUNDING_BYTES, (target, configuration)


def test_a_refusal_is_reported_and_the_process_goes_on(starter_path: Path, dry_run: DryRun) -> None:
    refused = Configuration(
        model_path=starter_path, n_ctx=512, type_v="q8_0", flash_attention="off"
    )
    with pytest.raises(WorkerError, match="refused this context"):
        dry_run.measure(refused)
    with pytest.raises(WorkerError, match="does not exist"):
        dry_run.measure(Configuration(model_path=Path("none.gguf"), n_ctx=512))
    assert dry_run.measure(Configuration(model_path=starter_path, n_ctx=512))


def test_a_dry_run_that_cannot_start_or_dies_is_reported(starter_path: Path) -> None:
    configuration = Configuration(model_path=starter_path, n_ctx=512)
    with pytest.raises(WorkerError, match="could not be started"):
        DryRun(("no-such-program",)).measure(configuration)
    with pytest.raises(WorkerError, match="ended with code 3"):
        DryRun(("sh", "-c", "exit 3")).measure(configuration)
