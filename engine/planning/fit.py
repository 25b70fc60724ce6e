"""A search as a user asks for it: models by name, a machine by sizes or cards, a goal."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.estimate import DoesNotFitError, estimator, max_n_ctx
from engine.memory.hardware import Device
from engine.memory.kv_cache import KV_TYPES
from engine.memory.terms import Target, TermKind
from engine.model.architecture import Model
from engine.planning.goals import Goal, Limits, Offload
from engine.planning.machine import PlannedMachine
from engine.planning.planner import DEFAULT_MARGIN_BYTES, Plan, Planner, Setup, n_ctx_limit
from engine.planning.request import Progress, take_model
from engine.planning.search import SearchResult, search
from engine.planning.workers import with_workers
from engine.presets.preset import SamplingRules

GOAL_TEXTS = {
    Goal.CONTEXT: "the most tokens, then the finest cache",
    Goal.QUALITY: "the finest cache, largest batches, then most tokens",
    Goal.SPEED: "a draft model, the finest cache, then the fastest layers",
    Goal.BALANCED: "32k tokens, a fine cache, and speed, weighed",
}
MOST_COMBINED = 5
"""Workers of which every choice is tried; of more, each alone and all together."""
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
    machines: tuple["MachineChoice", ...] = ()
    """Every choice of machines, where there are several; the one that was taken first."""


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """Some of the machines, and what they make of a model."""

    title: str
    """`here`, `host1 alone`, `host1 and host2`."""
    request: FitRequest
    found: SearchResult | None
    """None where nothing fits them."""
    refusal: str = ""


def fit(request: FitRequest, planner: Planner, *, progress: Progress | None = None) -> FitResult:
    """The best configuration for a request; of several machines, on those that it runs best on.

    Raises:
        ModelFileError: a model is not there or cannot be read.
        HardwareError: the machine cannot be.
        DoesNotFitError: nothing that is allowed fits it.
    """
    model = planner.model(take_model(request.model, planner, progress))
    draft = None
    if request.draft is not None:
        draft = planner.model(take_model(request.draft, planner, progress))
    machines: tuple[MachineChoice, ...] = ()
    if request.machine.workers:
        machines = _on_each(request, planner, model, draft)
        request = machines[0].request
    found = machines[0].found if machines else None
    found = found or _found(request, planner, model, draft)
    plan = planner.rated(_plan_of(request, model, draft, found), request.machine)
    return FitResult(request, model, found, plan, machines)


def _found(
    request: FitRequest, planner: Planner, model: Model, draft: Model | None
) -> SearchResult:
    devices = planner.devices(request.machine)
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
        known=planner.known(model.file.path, request.machine),
    )
    now = found.configuration
    if not any(device.kind == "gpu" for device in devices):
        return replace(found, configuration=_off_the_gpu(now))
    if request.machine.workers:
        return replace(found, configuration=with_workers(now, model, devices))
    return found


def _on_each(
    request: FitRequest, planner: Planner, model: Model, draft: Model | None
) -> tuple[MachineChoice, ...]:
    """What each choice of machines comes to, the best first.

    Layers on GPUs come before layers in main memory; then counts what the goal is about, a context
    or the finest cache; then the fewest machines, whose net takes the least time.

    Raises:
        DoesNotFitError: no choice fits.
    """
    found = []
    for title, asked in _choices(request, planner):
        try:
            found.append(MachineChoice(title, asked, _found(asked, planner, model, draft)))
        except PresetError as error:
            found.append(MachineChoice(title, asked, None, str(error)))
    found.sort(key=_order)
    if found[0].found is None:
        raise DoesNotFitError("\n".join(f"{each.title}: {each.refusal}" for each in found))
    return tuple(found)


def _choices(request: FitRequest, planner: Planner) -> Iterator[tuple[str, FitRequest]]:
    """Each machine alone, then those together that make sense; `here` runs llama-server then."""
    machine = request.machine
    alone = replace(machine, workers=())
    has_gpu = any(device.kind == "gpu" for device in planner.devices(alone))
    yield "here alone", replace(request, machine=alone, target="llama-server")
    for worker in machine.workers:
        # What its main memory holds is not known, so that only its GPUs are laid out.
        there = PlannedMachine(worker.vram_bytes, worker.cards, cpu=machine.cpu)
        limits = replace(request.limits, offload=Offload.NONE)
        asked = replace(request, machine=there, limits=limits, target="llama-server")
        yield f"{worker.host} alone", asked
    workers = machine.workers
    most = len(workers) if len(workers) <= MOST_COMBINED else 0
    counts = {*range(1 if has_gpu else 2, most + 1), len(workers)}
    for count in sorted(counts):
        for chosen in combinations(workers, count):
            names = [*(["here"] if has_gpu else []), *(worker.host for worker in chosen)]
            together = replace(machine, workers=chosen)
            title = " and ".join(names) if len(names) > 1 else f"{names[0]} from here"
            yield title, replace(request, machine=together, target="llama-server")


def _order(choice: MachineChoice) -> tuple[float, ...]:
    if choice.found is None:
        return (1.0,)
    now = choice.found.configuration
    is_whole = now.n_gpu_layers < 0 and not now.n_cpu_moe
    n_machines = len(choice.request.machine.workers)
    bits = -(KV_TYPES[now.type_k].bits + KV_TYPES[now.type_v].bits)
    wanted = (bits, -now.n_ctx) if choice.request.goal is not Goal.CONTEXT else (-now.n_ctx, bits)
    if choice.request.goal is Goal.SPEED:
        return (0.0, not is_whole, n_machines, *wanted)
    return (0.0, not is_whole, *wanted, n_machines)


def _plan_of(request: FitRequest, model: Model, draft: Model | None, found: SearchResult) -> Plan:
    now, margin = found.configuration, request.margin_bytes
    devices = tuple(device.device for device in found.estimate.devices)
    sizes = tuple(device.free_bytes for device in devices if device.kind == "gpu")
    machine = request.machine
    if not machine.workers:
        machine = PlannedMachine(sizes, cpu=machine.cpu)
    setup = Setup(now, request.target, machine, margin)
    cost = estimator(model, devices, target=request.target, draft=draft)
    largest = max_n_ctx(now, cost, n_ctx_limit=n_ctx_limit(model, setup), margin_bytes=margin)
    used = draft if now.draft is not None else None
    cost_now = cost(now) if machine.workers else found.estimate
    return Plan(setup, model, cost_now, max(largest or 0, now.n_ctx), used)


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
