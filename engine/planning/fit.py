"""A search as a user asks for it: models by name, a machine by sizes or cards, a goal."""

from dataclasses import dataclass, field, replace

from engine.configuration import Configuration
from engine.memory.estimate import estimator, max_n_ctx
from engine.memory.hardware import Device
from engine.memory.terms import Target, TermKind
from engine.model.architecture import Model
from engine.planning.goals import Goal, Limits
from engine.planning.machine import PlannedMachine
from engine.planning.planner import DEFAULT_MARGIN_BYTES, Plan, Planner, Setup, n_ctx_limit
from engine.planning.request import Progress, take_model
from engine.planning.search import SearchResult, search
from engine.presets.preset import SamplingRules

GOAL_TEXTS = {
    Goal.CONTEXT: "the most tokens, then the finest cache",
    Goal.QUALITY: "the finest cache, largest batches, then most tokens",
    Goal.SPEED: "a draft model, the finest cache, then the fastest layers",
    Goal.BALANCED: "32k tokens, a fine cache, and speed, weighed",
}
FILE_TERMS = (TermKind.PROJECTOR, TermKind.ADAPTERS)
"""Parts that a search does not place: their memory is taken off before it begins."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What to search for."""

    model: str
    goal: Goal = Goal.BALANCED
    machine: PlannedMachine = field(default_factory=PlannedMachine)
    target: Target = "llama-server"
    draft: str | None = None
    n_slots: int = 1
    margin_bytes: int = DEFAULT_MARGIN_BYTES
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class FitResult:
    """The best configuration for a request."""

    request: FitRequest
    model: Model
    found: SearchResult
    plan: Plan
    """The same as a plan, for what takes one, such as an export."""


def fit(request: FitRequest, planner: Planner, *, progress: Progress | None = None) -> FitResult:
    """The best configuration for a request.

    Raises:
        ModelFileError: a model is not there or cannot be read.
        HardwareError: the machine cannot be.
        DoesNotFitError: nothing that is allowed fits it.
    """
    devices = planner.devices(request.machine)
    model = planner.model(take_model(request.model, planner, progress))
    draft = None
    if request.draft is not None:
        draft = planner.model(take_model(request.draft, planner, progress))
    known = planner.known(model.file.path, request.machine)
    found = search(
        model,
        devices,
        request.goal,
        target=request.target,
        margin_bytes=request.margin_bytes,
        draft=draft,
        base=Configuration(
            model.file.path,
            n_ctx=256,
            n_slots=request.n_slots,
            sampling=SamplingRules().settings(),
        ),
        limits=request.limits,
        known=known,
    )
    if not any(device.kind == "gpu" for device in devices):
        found = replace(found, configuration=_off_the_gpu(found.configuration))
    plan = replace(_plan_of(request, model, draft, found), known=known)
    return FitResult(request, model, found, plan)


def _plan_of(request: FitRequest, model: Model, draft: Model | None, found: SearchResult) -> Plan:
    now, margin = found.configuration, request.margin_bytes
    devices = tuple(device.device for device in found.estimate.devices)
    sizes = tuple(device.free_bytes for device in devices if device.kind == "gpu")
    machine = PlannedMachine(sizes, cpu=request.machine.cpu)
    setup = Setup(now, request.target, machine, margin)
    cost = estimator(model, devices, target=request.target, draft=draft)
    largest = max_n_ctx(now, cost, n_ctx_limit=n_ctx_limit(model, setup), margin_bytes=margin)
    used = draft if now.draft is not None else None
    return Plan(setup, model, found.estimate, max(largest or 0, now.n_ctx), used)


def _off_the_gpu(configuration: Configuration) -> Configuration:
    """The same with nothing on a GPU, which the machine that runs it may have all the same."""
    draft = configuration.draft
    return replace(
        configuration,
        n_gpu_layers=0,
        draft=None if draft is None else replace(draft, n_gpu_layers=0),
    )


@dataclass(frozen=True, slots=True)
class FoundSetup:
    """A setup that was found for a goal, and why."""

    setup: Setup
    found: SearchResult


def search_setup(
    setup: Setup, goal: Goal, planner: Planner, limits: Limits | None = None
) -> FoundSetup:
    """The best setup for a goal on the same machine; other knobs stay.

    Raises:
        DoesNotFitError: nothing fits.
        PresetError: llama.cpp refuses what the other knobs say.
    """
    now = setup.configuration
    found = search(
        planner.model(now.model_path),
        _free_for_search(setup, planner),
        goal,
        target=setup.target,
        margin_bytes=setup.margin_bytes,
        draft=None if now.draft is None else planner.model(now.draft.model_path),
        base=now,
        limits=limits,
        known=planner.known(now.model_path, setup.machine),
    )
    return FoundSetup(setup.with_configuration(found.configuration), found)


def _free_for_search(setup: Setup, planner: Planner) -> tuple[Device, ...]:
    """The devices without what projector and adapters take."""
    devices = planner.devices_of(setup)
    now = setup.configuration
    if now.mmproj_path is None and not now.lora_paths:
        return devices
    small = replace(now, n_ctx=256)
    taken = {
        device.device.name: sum(device.term(kind).nbytes for kind in FILE_TERMS)
        for device in planner.estimator(setup)(small).devices
    }
    return tuple(
        replace(device, free_bytes=max(device.free_bytes - taken.get(device.name, 0), 0))
        for device in devices
    )
