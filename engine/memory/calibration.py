"""What a measured run taught about a card: the memory beyond buffers, and how far graphs were off.

llama.cpp cannot know before loading what a driver's context takes; a log of a server that ended
can: its memory breakdown has total, free and own bytes of each device. What other programs hold of
a card is left out: its free memory lacks that already.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import EngineError
from engine.files import NewestEntries
from engine.memory.estimate import Estimate
from engine.memory.hardware import Device
from engine.memory.server_log import DeviceMemory, ServerLog, compare_log, settings_that_differ
from engine.memory.terms import DeviceEstimate, Source, Term, TermKind
from engine.memory.units import MIB, format_bytes

NUMBER = re.compile(r"^GPU \d+ · ")
MAKERS = ("NVIDIA ", "GeForce ", "Tesla ", "AMD ", "Radeon ", "Instinct ")
"""Words that llama.cpp leaves out of a card's name in its breakdown."""
OVERHEAD_LIMIT_BYTES = 2048 * MIB
"""A driver's context of 107 to 555 MiB was reported: what is far beyond is another program."""
FACTOR_LIMITS = (0.5, 2.0)
VERSION = 1
MOST_CARDS = 64


class CalibrationError(EngineError):
    """A calibration that cannot be taken, read or kept."""

    title = "The calibration failed"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one run on a card taught."""

    overhead_bytes: int
    """In use beyond llama.cpp's buffers and other programs while the model was loaded."""
    compute_factor: float | None = None
    """Measured graph over the planned one; None where the log is of another configuration."""

    @property
    def is_sane(self) -> bool:
        """Whether a driver may take so much, and a graph be so far off."""
        low, high = FACTOR_LIMITS
        is_near = self.compute_factor is None or low <= self.compute_factor <= high
        return is_near and 0 < self.overhead_bytes <= OVERHEAD_LIMIT_BYTES


Calibrations = Mapping[str, Calibration]
"""By the name of the card without its maker."""


def card_name(name: str) -> str:
    """A card's name as llama.cpp prints it: `NVIDIA GeForce RTX 3090` is `RTX 3090`.

    The number that tells several cards of a plan apart is no part of it.
    """
    name = NUMBER.sub("", name)
    for maker in MAKERS:
        name = name.removeprefix(maker)
    return name.strip()


def overhead_bytes(device: Device, known: Calibrations) -> int | None:
    """What was measured beyond buffers on a card of this name; None where nothing was."""
    found = known.get(card_name(device.name))
    return None if found is None else found.overhead_bytes


def calibrate(log: ServerLog, planned: Estimate) -> dict[str, Calibration]:
    """Learn from a log that has a memory breakdown of a loaded model.

    Raises:
        CalibrationError: the log has none, or its numbers cannot be a driver's overhead; the
            message says which.
    """
    found = {}
    for row in log.devices:
        if row.unaccounted_bytes is None:
            continue
        nbytes = row.unaccounted_bytes - _beside(row, log) - _of_others(row, planned)
        _check(row, nbytes)
        found[card_name(row.description)] = Calibration(nbytes, _factor(row, log, planned))
    if not found:
        raise CalibrationError(
            "the log has no memory breakdown of a GPU with a loaded model: start llama-server with "
            "-lv 4, and end it with Ctrl+C, which prints one"
        )
    return found


def _beside(row: DeviceMemory, log: ServerLog) -> int:
    """What a draft model and a projector hold: the breakdown is of the target alone."""
    return sum(b.nbytes for b in log.buffers if b.owner != "target" and b.device == row.name)


def _of_others(row: DeviceMemory, planned: Estimate) -> int:
    """What other programs hold of the planned card of a row; 0 where the plan is for another."""
    found = _planned_device(row, planned)
    if found is None or card_name(found.name) != card_name(row.description):
        return 0
    return max(0, (row.total_bytes or 0) - found.free_bytes)


def _planned_device(row: DeviceMemory, planned: Estimate) -> Device | None:
    """The GPU of a plan that has the number of a row; None where there is none."""
    gpus = [device.device for device in planned.devices if device.device.kind == "gpu"]
    number = "".join(character for character in row.name if character.isdigit())
    return gpus[int(number)] if number and int(number) < len(gpus) else None


def _check(row: DeviceMemory, nbytes: int) -> None:
    if not 0 < nbytes <= OVERHEAD_LIMIT_BYTES:
        raise CalibrationError(
            f"{row.name} has {format_bytes(nbytes)} in use beyond llama.cpp's buffers, which is no "
            "driver's context: end other programs on the card, run the server again, and end it "
            "with Ctrl+C"
        )


def _factor(row: DeviceMemory, log: ServerLog, planned: Estimate) -> float | None:
    gpu = _planned_device(row, planned)
    if gpu is None or settings_that_differ(planned, log):
        return None
    for compared in compare_log(planned, log):
        if (compared.device, compared.kind) == (gpu.name, TermKind.COMPUTE.value):
            low, high = FACTOR_LIMITS
            share = compared.measured_bytes / max(compared.planned_bytes, 1)
            return round(share, 3) if low <= share <= high else None
    return None


def apply_calibrations(planned: Estimate, known: Calibrations) -> Estimate:
    """An estimate with what was measured on cards of the same names."""
    devices = tuple(_calibrated_device(device, known) for device in planned.devices)
    return replace(planned, devices=devices)


def _calibrated_device(device: DeviceEstimate, known: Calibrations) -> DeviceEstimate:
    found = known.get(card_name(device.device.name))
    if found is None or device.device.kind != "gpu" or not device.terms:
        return device
    terms = dict(device.terms)
    if TermKind.OVERHEAD in terms:
        terms[TermKind.OVERHEAD] = Term(
            found.overhead_bytes, Source.MEASURED, "calibrated with a log of this card"
        )
    compute = terms.get(TermKind.COMPUTE)
    if compute is not None and compute.source is Source.ESTIMATED and found.compute_factor:
        terms[TermKind.COMPUTE] = _scaled(compute, found.compute_factor)
    return replace(device, terms=terms)


def _scaled(term: Term, factor: float) -> Term:
    note = f"{term.note}, times {factor:g} by a log of this card".removeprefix(", ")
    low, high = term.range
    scaled = (round(low * factor), round(high * factor)) if term.bounds else None
    return Term(round(term.nbytes * factor), term.source, note, scaled)


def read_calibrations(path: Path) -> dict[str, Calibration]:
    """What was learned so far; nothing where there is no file yet, or a damaged one."""
    return {name: one for name, one in _kept(path).read().items() if one.is_sane}


def write_calibrations(path: Path, found: Calibrations) -> None:
    """Keep calibrations, beside those of other cards.

    Raises:
        CalibrationError: the file cannot be written.
    """
    try:
        _kept(path).write({**read_calibrations(path), **found})
    except OSError as error:
        raise CalibrationError(f"{path} cannot be written: {error.strerror or error}") from error


def _kept(path: Path) -> NewestEntries[Calibration]:
    return NewestEntries(path, "cards", VERSION, MOST_CARDS, Calibration)
