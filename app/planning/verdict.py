"""Whether a plan fits: with the margin, without it, or not at all."""

from enum import StrEnum

from engine.memory.estimate import Estimate
from engine.memory.terms import DeviceEstimate


class Verdict(StrEnum):
    """The three answers, best first."""

    FITS = "fits"
    """Every device keeps the margin free."""
    TIGHT = "tight"
    """It goes into the free memory, and less than the margin stays."""
    NO = "no"
    """A device lacks memory."""


def device_verdict(device: DeviceEstimate, margin_bytes: int) -> Verdict:
    """Say how one device stands; one that holds nothing always fits."""
    if not device.total_bytes or device.left_bytes >= margin_bytes:
        return Verdict.FITS
    return Verdict.TIGHT if device.left_bytes >= 0 else Verdict.NO


def verdict_of(estimate: Estimate, margin_bytes: int) -> Verdict:
    """Give the worst answer among the devices."""
    found = [device_verdict(device, margin_bytes) for device in estimate.devices]
    return max(found, key=list(Verdict).index)
