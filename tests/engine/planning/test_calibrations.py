from dataclasses import replace
from pathlib import Path

import pytest

from app.paths import calibration_path, data_dir
from app.planning import user_planner
from engine.configuration import Configuration
from engine.memory.calibration import Calibration, write_calibrations
from engine.memory.terms import Source, TermKind
from engine.memory.units import MIB
from engine.planning.machine import PlannedMachine
from engine.planning.planner import Planner, Setup

CARD = "GeForce RTX 4090"
KNOWN = {"RTX 4090": Calibration(overhead_bytes=450 * MIB, compute_factor=None)}


def setup_of(path: Path) -> Setup:
    setup = Setup(Configuration(path, 1024))
    return replace(setup, machine=PlannedMachine(cards=(CARD,)))


def overhead(planner: Planner, setup: Setup) -> tuple[int, Source]:
    term = planner.plan(setup).estimate.devices[0].term(TermKind.OVERHEAD)
    return term.nbytes, term.source


def test_what_a_log_taught_about_a_card_counts_in_every_plan(starter_path: Path) -> None:
    setup = setup_of(starter_path)
    plain = overhead(Planner(), setup)
    assert overhead(Planner(calibrations=lambda: KNOWN), setup) == (450 * MIB, Source.MEASURED)
    assert plain[1] is Source.ESTIMATED


def test_what_was_kept_is_read(
    starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert calibration_path().parent == data_dir()
    calibration_path().parent.mkdir(parents=True, exist_ok=True)
    write_calibrations(calibration_path(), KNOWN)
    assert overhead(user_planner(), setup_of(starter_path)) == (450 * MIB, Source.MEASURED)
    calibration_path().write_text("{", encoding="utf-8")
    assert overhead(user_planner(), setup_of(starter_path))[1] is Source.ESTIMATED
