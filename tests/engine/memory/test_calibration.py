"""What a log of a run teaches about a card."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.events import BufferSize
from engine.memory.calibration import (
    Calibration,
    CalibrationError,
    apply_calibrations,
    calibrate,
    card_name,
    overhead_bytes,
    read_calibrations,
    write_calibrations,
)
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.server_log import DeviceMemory, ServerLog
from engine.memory.terms import Source, TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
CARD = Device("NVIDIA GeForce RTX 3090", "gpu", 24 * GIB, 24 * GIB)


@pytest.fixture
def planned(starter_path: Path) -> Estimate:
    configuration = Configuration(starter_path, 2048)
    return estimate(read_model(starter_path), configuration, (CARD, CPU), target="llama-server")


def log_of(*, free: int, compute: int = 100 * MIB, beside: int = 0) -> ServerLog:
    """A log of a card with 24 GiB where the target holds 1 GiB."""
    own = 1024 * MIB - compute
    row = DeviceMemory("CUDA0", "RTX 3090", own, 0, compute, 24 * GIB, free, is_loaded=True)
    buffers = [BufferSize("CUDA0", "model", own), BufferSize("CUDA0", "compute", compute)]
    if beside:
        buffers.append(BufferSize("CUDA0", "model", beside, "draft"))
    return ServerLog(tuple(buffers), (row,), {"n_ctx": "2048"})


def test_overhead_is_what_no_buffer_accounts_for(planned: Estimate) -> None:
    found = calibrate(log_of(free=23 * GIB - 400 * MIB), planned)
    assert found["RTX 3090"].overhead_bytes == 400 * MIB


def test_a_draft_model_is_no_overhead(planned: Estimate) -> None:
    found = calibrate(log_of(free=23 * GIB - 900 * MIB, beside=500 * MIB), planned)
    assert found["RTX 3090"].overhead_bytes == 400 * MIB


@pytest.mark.parametrize("name", [CARD.name, f"GPU 0 · {CARD.name}"])
def test_other_programs_on_a_card_are_counted_once(starter_path: Path, name: str) -> None:
    held = 1200 * MIB
    card = replace(CARD, name=name, free_bytes=CARD.free_bytes - held)
    planned = estimate(read_model(starter_path), Configuration(starter_path, 2048), (card, CPU))
    found = calibrate(log_of(free=23 * GIB - 350 * MIB - held), planned)
    assert found["RTX 3090"].overhead_bytes == 350 * MIB


def test_programs_on_another_card_than_the_logs_count_nothing(starter_path: Path) -> None:
    other = replace(CARD, name="NVIDIA GeForce RTX 4090", free_bytes=20 * GIB)
    planned = estimate(read_model(starter_path), Configuration(starter_path, 2048), (other, CPU))
    found = calibrate(log_of(free=23 * GIB - 350 * MIB), planned)
    assert found["RTX 3090"].overhead_bytes == 350 * MIB


def test_the_graphs_factor_is_of_the_same_configuration_only(planned: Estimate) -> None:
    graph = planned.devices[0].term(TermKind.COMPUTE).nbytes
    log = log_of(free=22 * GIB, compute=round(graph * 1.25))
    assert calibrate(log, planned)["RTX 3090"].compute_factor == pytest.approx(1.25, abs=0.001)
    other = replace(log, settings={"n_ctx": "4096"})
    assert calibrate(other, planned)["RTX 3090"].compute_factor is None


@pytest.mark.parametrize("free", [24 * GIB, 10 * GIB])
def test_other_programs_on_the_card_teach_nothing(planned: Estimate, free: int) -> None:
    with pytest.raises(CalibrationError, match="no driver's context: end other programs"):
        calibrate(log_of(free=free), planned)


def test_a_log_without_a_card_teaches_nothing(planned: Estimate) -> None:
    with pytest.raises(CalibrationError, match="Ctrl"):
        calibrate(ServerLog((BufferSize("CPU", "model", 5),), ()), planned)


def test_makers_are_no_part_of_a_cards_name() -> None:
    assert card_name("NVIDIA GeForce RTX 3090") == card_name("RTX 3090") == "RTX 3090"
    assert card_name("AMD Instinct MI300X") == "MI300X"


def test_an_estimate_takes_what_was_measured_on_its_card(planned: Estimate) -> None:
    known = {"RTX 3090": Calibration(123 * MIB, 1.5)}
    before, after = planned.devices[0], apply_calibrations(planned, known).devices[0]
    assert overhead_bytes(CARD, known) == after.term(TermKind.OVERHEAD).nbytes == 123 * MIB
    assert after.term(TermKind.OVERHEAD).source is Source.MEASURED
    graph = before.term(TermKind.COMPUTE).nbytes
    assert after.term(TermKind.COMPUTE).nbytes == round(graph * 1.5)
    assert after.term(TermKind.WEIGHTS) == before.term(TermKind.WEIGHTS)
    assert apply_calibrations(planned, known).devices[1] == planned.devices[1]
    assert apply_calibrations(planned, {"RTX 4090": Calibration(5)}) == planned
    assert overhead_bytes(CARD, {}) is None


def test_calibrations_are_kept_beside_those_of_other_cards(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "calibration.json"
    assert read_calibrations(path) == {}
    first, second = {"A": Calibration(5, 1.25)}, {"B": Calibration(7)}
    write_calibrations(path, first)
    write_calibrations(path, second)
    assert read_calibrations(path) == first | second


@pytest.mark.parametrize("text", ["{", "[1]", '{"A": 5}', '{"A": {"overhead_bytes": "x"}}'])
def test_of_a_damaged_file_nothing_is_known(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    assert read_calibrations(path) == {}
    write_calibrations(path, {"A": Calibration(5)})
    assert read_calibrations(path) == {"A": Calibration(5)}
