"""A planner that remembers gives what one that forgets would."""

from dataclasses import replace
from pathlib import Path

from engine.configuration import Configuration
from engine.memory.units import GIB
from engine.planning.machine import PlannedMachine
from engine.planning.planner import Planner, Setup


def test_another_machine_target_or_card_is_another_estimate(starter_path: Path) -> None:
    first = Setup(Configuration(starter_path, 4096), machine=PlannedMachine((2 * GIB,)))
    others = (
        first,
        replace(first, target="llama-server"),
        replace(first, machine=PlannedMachine((3 * GIB,))),
        replace(first, machine=PlannedMachine(cards=("GeForce RTX 4090",))),
        replace(first, machine=PlannedMachine(ram_bytes=16 * GIB)),
    )
    planner = Planner(remembers=True)
    for setup in (*others, *others):
        found, fresh = planner.plan(setup), Planner().plan(setup)
        assert found.max_n_ctx == fresh.max_n_ctx
        for ours, theirs in zip(found.estimate.devices, fresh.estimate.devices, strict=True):
            assert ours.terms == theirs.terms
            assert ours.device.name == theirs.device.name
            assert ours.device.total_bytes == theirs.device.total_bytes
