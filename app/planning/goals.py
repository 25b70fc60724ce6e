"""The search from the planner's screen: a goal, and what was found for it."""

from dataclasses import dataclass, replace

from app.planning.knob import with_configuration
from app.planning.plan import Planner, Setup
from engine.memory.hardware import Device
from engine.memory.search import Found, Goal, search
from engine.memory.terms import TermKind

MEANINGS = {
    Goal.CONTEXT: "the most tokens, then the finest cache",
    Goal.QUALITY: "the finest cache, largest batches, then most tokens",
    Goal.SPEED: "a draft model, the finest cache, then the fastest layers",
    Goal.BALANCED: "32k tokens, a fine cache, and speed, weighed",
}
BESIDE = (TermKind.PROJECTOR, TermKind.ADAPTERS)
"""Parts that a search does not place: their memory is taken off before it begins."""


@dataclass(frozen=True, slots=True)
class Searched:
    """A setup that was found, and why."""

    setup: Setup
    found: Found


def search_setup(setup: Setup, goal: Goal, planner: Planner) -> Searched:
    """Give the best setup for a goal on the same machine; other knobs stay.

    Raises:
        DoesNotFitError: nothing fits.
        PresetError: llama.cpp refuses what the other knobs say.
    """
    now = setup.configuration
    draft = None if now.draft is None else planner.model(now.draft.model_path)
    found = search(
        planner.model(now.model_path),
        _free_for_search(setup, planner),
        goal,
        target=setup.target,
        margin_bytes=setup.margin_bytes,
        draft=draft,
        base=now,
    )
    return Searched(with_configuration(setup, found.configuration), found)


def _free_for_search(setup: Setup, planner: Planner) -> tuple[Device, ...]:
    """Give the devices without what projector and adapters take."""
    devices = planner.devices_of(setup)
    now = setup.configuration
    if now.mmproj_path is None and not now.lora_paths:
        return devices
    small = replace(now, n_ctx=256)
    taken = {
        device.device.name: sum(device.term(kind).nbytes for kind in BESIDE)
        for device in planner.estimator(setup)(small).devices
    }
    return tuple(
        replace(device, free_bytes=max(device.free_bytes - taken.get(device.name, 0), 0))
        for device in devices
    )
