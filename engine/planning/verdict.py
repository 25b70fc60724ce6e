"""Whether an estimate fits, and what is short on which device."""

from collections.abc import Sequence
from enum import StrEnum

from engine.memory.estimate import Estimate
from engine.memory.terms import DeviceEstimate
from engine.memory.units import format_bytes
from engine.model.ollama import model_name


class FitVerdict(StrEnum):
    """Whether a plan fits, the best answer first."""

    FITS = "fits"
    """Every device keeps the margin free."""
    TIGHT = "tight"
    """The plan fits, but leaves less than the margin free."""
    NO = "no"
    """A device lacks memory."""


def device_verdict(device: DeviceEstimate, margin_bytes: int) -> FitVerdict:
    """Whether one device fits; one that holds nothing always does."""
    if not device.total_bytes or device.left_bytes >= margin_bytes:
        return FitVerdict.FITS
    return FitVerdict.TIGHT if device.left_bytes >= 0 else FitVerdict.NO


def verdict_of(estimate: Estimate, margin_bytes: int) -> FitVerdict:
    """The worst verdict among the devices."""
    found = [device_verdict(device, margin_bytes) for device in estimate.devices]
    return max(found, key=list(FitVerdict).index)


def fullest_device(estimate: Estimate, margin_bytes: int) -> DeviceEstimate:
    """The device of the worst verdict; of several the one with the largest share in use."""

    def fullness(device: DeviceEstimate) -> tuple[int, float]:
        used = device.total_bytes + device.shared_bytes
        verdict = list(FitVerdict).index(device_verdict(device, margin_bytes))
        return verdict, used / max(device.device.free_bytes, 1)

    return max((each for each in estimate.devices if each.total_bytes), key=fullness)


def shortages(estimate: Estimate, margin_bytes: int) -> tuple[str, ...]:
    """Texts with the memory that each device lacks; empty if the plan fits."""
    verdict = verdict_of(estimate, margin_bytes)
    return tuple(
        f"{each.device.name} lacks {format_bytes(-each.left_bytes)}"
        if verdict is FitVerdict.NO
        else f"{each.device.name} would have only {format_bytes(each.left_bytes)} free; the "
        f"margin is {format_bytes(margin_bytes)}"
        for each in estimate.devices
        if verdict is not FitVerdict.FITS and device_verdict(each, margin_bytes) is verdict
    )


def does_not_fit(estimate: Estimate, margin_bytes: int, changes: Sequence[str]) -> str:
    """The message for a configuration that does not fit: shortages and remedies."""
    now = estimate.configuration
    short = "; ".join(
        f"{each.device.name} needs {format_bytes(each.total_bytes + each.shared_bytes)} but "
        f"has {format_bytes(each.device.free_bytes)} free"
        for each in estimate.devices
        if device_verdict(each, margin_bytes) is not FitVerdict.FITS
    )
    return (
        f"{model_name(now.model_path)} does not fit with {n_tokens(now.n_ctx)} of "
        f"{now.kv_types} cache and a margin of {format_bytes(margin_bytes)} on each device: "
        f"{short}. Choose {', '.join(changes[:-1])} or {changes[-1]}"
    )


def n_tokens(n: int) -> str:
    """A number of tokens with its noun."""
    return "1 token" if n == 1 else f"{n:,} tokens"
