"""Measured numbers in the place of formulas, on several devices and with a draft."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, DraftConfiguration
from engine.memory.dry_run import MeasuredBuffer, with_measured
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.terms import Source, TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
CARDS = tuple(Device(f"Card {name}", "gpu", 24 * GIB, 24 * GIB) for name in "AB")


def planned(path: Path, *cards: Device, draft: DraftConfiguration | None = None) -> Estimate:
    configuration = Configuration(path, 2048, draft=draft)
    model = read_model(path)
    return estimate(model, configuration, (*cards, CPU), draft=model if draft else None)


def test_graphs_lie_on_the_device_of_their_number_and_the_rest_on_the_cpu(
    starter_path: Path,
) -> None:
    buffers = (
        MeasuredBuffer("CUDA0", "compute", 11 * MIB),
        MeasuredBuffer("CUDA1", "compute", 12 * MIB),
        MeasuredBuffer("CUDA_Host", "compute", 3 * MIB),
        MeasuredBuffer("CUDA_Host", "output", 1 * MIB),
    )
    found = with_measured(planned(starter_path, *CARDS), buffers).devices
    assert [device.term(TermKind.COMPUTE).nbytes // MIB for device in found] == [11, 12, 4]
    assert all(device.term(TermKind.COMPUTE).source is Source.MEASURED for device in found)


def test_weights_are_those_of_the_dry_run_where_it_tells_them(starter_path: Path) -> None:
    before = planned(starter_path)
    exact = before.devices[0].term(TermKind.WEIGHTS)
    same = (MeasuredBuffer("CPU", "model", exact.nbytes),)
    twice = (*same, MeasuredBuffer("CPU_REPACK", "model", 30 * MIB))
    assert with_measured(before, same).devices[0].term(TermKind.WEIGHTS) == exact
    found = with_measured(before, twice).devices[0].term(TermKind.WEIGHTS)
    assert (found.nbytes, found.source) == (exact.nbytes + 30 * MIB, Source.MEASURED)
    own_head = replace(before, configuration=replace(before.configuration, n_mtp_draft=3))
    assert with_measured(own_head, twice).devices[0].term(TermKind.WEIGHTS) == exact


def test_a_cache_over_two_cards_is_shared_as_the_formula_says(starter_path: Path) -> None:
    before = planned(starter_path, *CARDS)
    same = with_measured(before, (MeasuredBuffer("", "KV", 45 * MIB),))
    double = with_measured(before, (MeasuredBuffer("", "KV", 90 * MIB),))
    for old, kept, new in zip(before.devices, same.devices, double.devices, strict=True):
        assert kept.term(TermKind.KV) == old.term(TermKind.KV)
        assert new.term(TermKind.KV).nbytes == 2 * old.term(TermKind.KV).nbytes
    assert double.devices[0].term(TermKind.KV).source is Source.MEASURED


def test_a_cache_on_one_device_is_what_was_measured(starter_path: Path) -> None:
    found = with_measured(planned(starter_path, CARDS[0]), (MeasuredBuffer("", "KV", 99 * MIB),))
    assert found.devices[0].term(TermKind.KV).nbytes == 99 * MIB
    assert found.devices[0].term(TermKind.KV).source is Source.MEASURED


def test_state_that_the_formula_does_not_know_of_is_not_lost(starter_path: Path) -> None:
    found = with_measured(planned(starter_path, *CARDS), (MeasuredBuffer("", "RS", 90 * MIB),))
    sizes = [device.term(TermKind.STATE).nbytes for device in found.devices]
    assert sum(sizes) == pytest.approx(90 * MIB, abs=3)
    assert min(sizes) > 0


def test_a_drafts_cache_and_graph_are_counted_with_its_weights(starter_path: Path) -> None:
    draft = DraftConfiguration(starter_path, n_ctx=1024)
    before = planned(starter_path, draft=draft)
    buffers = (
        MeasuredBuffer("CPU", "compute", 7 * MIB, "draft"),
        MeasuredBuffer("", "KV", 30 * MIB, "draft"),
        MeasuredBuffer("CPU", "compute", 21 * MIB),
    )
    model = read_model(starter_path)
    [device] = with_measured(before, buffers, model).devices
    weights = device.term(TermKind.WEIGHTS).nbytes
    assert device.term(TermKind.DRAFT).nbytes == weights + 37 * MIB
    assert device.term(TermKind.DRAFT).source is Source.MEASURED
    assert device.term(TermKind.COMPUTE).nbytes == 21 * MIB
    [without] = with_measured(before, buffers).devices
    assert without.term(TermKind.DRAFT) == before.devices[0].term(TermKind.DRAFT)


@pytest.mark.parametrize("name", ["CUDA7", "RPC9"])
def test_a_device_that_was_not_planned_for_changes_nothing(starter_path: Path, name: str) -> None:
    before = planned(starter_path, CARDS[0])
    assert with_measured(before, (MeasuredBuffer(name, "compute", 5),)) == before
