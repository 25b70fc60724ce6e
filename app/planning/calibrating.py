"""Learns from logs what a card's context and graphs really take."""

from pathlib import Path

from app.planning.calibrations import calibration_path
from app.planning.plan import Plan, Planner
from engine.memory.calibration import Calibration, calibrate, write_calibrations
from engine.memory.server_log import read_server_log


def learn_from_log(plan: Plan, log: Path) -> dict[str, Calibration]:
    """Learn from a log of the plan's configuration, keep it, and give what was learned.

    The log is held against the plain formulas, not against what an earlier log made of them.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
        CalibrationError: it says nothing about a card, or the file cannot be kept.
    """
    planner = Planner(calibrations={})
    planner.add(plan.model)
    found = calibrate(read_server_log(log), planner.plan(plan.setup).estimate)
    write_calibrations(calibration_path(), found)
    return found
