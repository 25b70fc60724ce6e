"""How fast memory is read: by the card's data sheet, or as it was measured here."""

import json
from pathlib import Path

import pytest

from engine.memory import bandwidth
from engine.memory.bandwidth import N_MEASURES, Bandwidth, Bandwidths, measure_ram
from engine.memory.cards import card_of, find_card, planned_devices
from engine.memory.hardware import Device
from engine.memory.units import GIB

CPU = Device("CPU", "cpu", 8 * GIB, 8 * GIB)


def gpu(name: str, gib: float = 12) -> Device:
    return Device(name, "gpu", round(gib * GIB), round(gib * GIB))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each measurement gives, the last first."""
    left = [3e10, 1e10, 2e10]
    monkeypatch.setattr(bandwidth, "measure_ram", left.pop)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    return left


def test_what_is_measured_is_a_speed_that_memory_has() -> None:
    assert 5e8 < measure_ram(0.05) < 2e12


def test_the_best_of_the_first_measurements_is_cached_and_no_more_are_made(
    tmp_path: Path, passes: list[float]
) -> None:
    path = tmp_path / "bandwidths.json"
    found = [Bandwidths(path).of(CPU) for _ in range(N_MEASURES + 2)]
    assert [each.bytes_per_s for each in found if each] == [2e10, 2e10, 3e10, 3e10, 3e10]
    assert {each.basis for each in found if each} == {"measured here"}
    assert passes == []


def test_on_a_busy_machine_nothing_is_settled_and_it_is_measured_again_when_idle(
    tmp_path: Path, passes: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (64.0, 64.0, 64.0))
    passes[:0] = [4e10]
    path = tmp_path / "bandwidths.json"
    found = [Bandwidths(path).of(CPU) for _ in range(N_MEASURES + 2)]
    assert [each.bytes_per_s for each in found if each] == [2e10, 2e10, 3e10, 3e10, 3e10]
    assert {each.basis for each in found if each} == {"measured while busy"}
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert Bandwidths(path).of(CPU) == Bandwidth(4e10, "measured here")


@pytest.mark.parametrize("entry", [None, "fast", [], [0, 3], [1e20, 3], [2e10, "3"], {"a": 1}])
def test_an_impossible_cached_figure_is_measured_again(
    tmp_path: Path, passes: list[float], entry: object
) -> None:
    path = tmp_path / "bandwidths.json"
    Bandwidths(path).of(CPU)
    cached = json.loads(path.read_text())
    cached["bandwidths"] = dict.fromkeys(cached["bandwidths"], entry)
    path.write_text(json.dumps(cached))
    found = Bandwidths(path).of(CPU)
    assert found is not None
    assert found.bytes_per_s == 1e10


@pytest.mark.parametrize("name", ["RTX 3060", "RTX 4090", "RX 7900 XTX", "M4 Max 64GB"])
def test_a_card_that_is_planned_for_has_the_bandwidth_of_its_data_sheet(name: str) -> None:
    card = find_card(name)
    found = Bandwidths(None).of(card.device())
    assert found is not None
    assert (found.bytes_per_s, found.basis) == (card.bandwidth_gbps * 1e9, "nominal")
    numbered = planned_devices(cards=(name,), ram_bytes=None)[0]
    assert card_of(numbered) == card_of(gpu(f"NVIDIA {card.name}")) == card


def test_a_gpu_of_a_size_alone_has_none() -> None:
    assert Bandwidths(None).of(gpu("GPU 0", 24)) is None
