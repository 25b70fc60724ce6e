"""What logs taught about the cards: one file in the data folder, by the name of the card."""

from pathlib import Path

from app.paths import data_dir
from engine.memory.calibration import Calibration, read_calibrations


def calibration_path() -> Path:
    """Give the file that remembers what logs said about cards."""
    return data_dir() / "calibration.json"


def known_calibrations() -> dict[str, Calibration]:
    """Read what was learned so far.

    Raises:
        CalibrationError: the file is damaged.
    """
    return read_calibrations(calibration_path())
