"""What this user's cards taught: kept in the data folder, by the name of the card."""

from pathlib import Path

from app.locations import data_dir
from app.planning.plan import Plan
from engine.memory.calibration import (
    Calibration,
    calibrate,
    read_calibrations,
    write_calibrations,
)
from engine.memory.server_log import read_server_log


def calibration_path() -> Path:
    """Give the file that remembers what logs said about cards."""
    return data_dir() / "calibration.json"


def known_calibrations() -> dict[str, Calibration]:
    """Read what was learned so far.

    Raises:
        CalibrationError: the file is damaged.
    """
    return read_calibrations(calibration_path())


def learn_from_log(plan: Plan, log: Path) -> dict[str, Calibration]:
    """Learn from a log of the plan's configuration, keep it, and give what was learned.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
        CalibrationError: it says nothing about a card, or the file cannot be kept.
    """
    found = calibrate(read_server_log(log), plan.estimate)
    write_calibrations(calibration_path(), found)
    return found
