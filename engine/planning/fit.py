"""The best configuration of a setup for a goal; of several machines, on those that suit it best."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.estimate import DoesNotFitError
from engine.memory.kv_cache import KV_TYPES
from engine.planning.goals import Goal, Offload, SearchLimits
from engine.planning.machine import PlannedMachine
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.search import SearchResult, search
from engine.planning.workers import with_workers

GOAL_TEXTS = {
    Goal.CONTEXT: "the most tokens, then the finest cache",
    Goal.QUALITY: "the finest cache, largest batches, then most tokens",
    Goal.SPEED: "a draft model, the finest cache, then the fastest layers",
    Goal.BALANCED: "32k tokens, a fine cache, and speed, weighed",
}
MOST_COMBINED = 5
"""Workers of which every choice is tried; of more, each alone and all together."""


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """Some of the machines, and what they make of a model."""

    title: str
    """`here`, `host1 alone`, `host1 and host2`."""
    setup: Setup
    found: SearchResult | None
    """None where nothing fits them."""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class FitResult:
    """The best configuration for a goal."""

    found: SearchResult
    plan: Plan
    """The same as a plan, for what takes one, such as an export."""
    machines: tuple[MachineChoice, ...] = ()
    """Every choice of machines, where there are several; the one that was taken first."""


def fit(
    setup: Setup, goal: Goal, planner: Planner, limits: SearchLimits | None = None
) -> FitResult:
    """The best configuration for a goal; of several machines, on those that it runs best on.

    Args:
        setup: The model, the program and the machine; its other knobs stay.
        goal: What is to be best.
        planner: Knows the models.
        limits: What the search has to keep to.

    Raises:
        HardwareError: the machine cannot be.
        DoesNotFitError: nothing that is allowed fits it.
    """
    machines: tuple[MachineChoice, ...] = ()
    if setup.machine.workers:
        machines = _on_each(setup, goal, planner, limits or SearchLimits())
        setup = machines[0].setup
    found = (machines[0].found if machines else None) or search_setup(setup, goal, planner, limits)
    return FitResult(found, planner.plan(setup.with_configuration(found.configuration)), machines)


def search_setup(
    setup: Setup, goal: Goal, planner: Planner, limits: SearchLimits | None = None
) -> SearchResult:
    """The best configuration for a goal on the machine of a setup, whose other knobs stay.

    Raises:
        DoesNotFitError: nothing fits.
        PresetError: llama.cpp refuses what the other knobs say.
    """
    now, devices = setup.configuration, planner.devices_of(setup)
    model = planner.model(now.model_path)
    found = search(
        model,
        devices,
        goal,
        margin_bytes=setup.margin_bytes,
        cost=planner.estimator(setup),
        draft=None if now.draft is None else planner.model(now.draft.model_path),
        base=now,
        limits=limits,
        known=planner.known(now.model_path, setup.machine),
    )
    chosen = found.configuration
    if not any(device.kind == "gpu" for device in devices):
        return replace(found, configuration=_off_the_gpu(chosen))
    if setup.machine.workers:
        return replace(found, configuration=with_workers(chosen, model, devices))
    return found


def _on_each(
    setup: Setup, goal: Goal, planner: Planner, limits: SearchLimits
) -> tuple[MachineChoice, ...]:
    """What each choice of machines comes to, the best first.

    Layers on GPUs come before layers in RAM; then counts what the goal is about, a context or the
    finest cache; then the fewest machines, whose net takes the least time.

    Raises:
        DoesNotFitError: no choice fits.
    """
    found = []
    for title, asked, allowed in _choices(setup, planner, limits):
        try:
            answer = search_setup(asked, goal, planner, allowed)
            found.append(MachineChoice(title, asked, answer))
        except PresetError as error:
            found.append(MachineChoice(title, asked, None, str(error)))
    found.sort(key=_order)
    if found[0].found is None:
        raise DoesNotFitError("\n".join(f"{each.title}: {each.refusal}" for each in found))
    return tuple(found)


def _choices(
    setup: Setup, planner: Planner, limits: SearchLimits
) -> Iterator[tuple[str, Setup, SearchLimits]]:
    """Each machine alone, then those together that make sense; `here` runs llama-server then."""
    machine, workers = setup.machine, setup.machine.workers
    here = replace(setup, target="llama-server")
    alone = replace(machine, workers=())
    has_gpu = any(device.kind == "gpu" for device in planner.devices(alone))
    yield "here alone", replace(here, machine=alone), limits
    for worker in workers:
        # What its RAM holds is not known, so that only its GPUs are used.
        there = PlannedMachine(worker.vram_bytes, worker.cards, cpu=machine.cpu)
        on_gpus = replace(limits, offload=Offload.NONE)
        yield f"{worker.host} alone", replace(here, machine=there), on_gpus
    most = len(workers) if len(workers) <= MOST_COMBINED else 0
    for count in sorted({*range(1 if has_gpu else 2, most + 1), len(workers)}):
        for chosen in combinations(workers, count):
            names = [*(["here"] if has_gpu else []), *(worker.host for worker in chosen)]
            title = " and ".join(names) if len(names) > 1 else f"{names[0]} from here"
            yield title, replace(here, machine=replace(machine, workers=chosen)), limits


def _order(choice: MachineChoice) -> tuple[float, ...]:
    if choice.found is None:
        return (1.0,)
    now = choice.found.configuration
    is_whole = now.n_gpu_layers < 0 and not now.n_cpu_moe
    n_machines = len(choice.setup.machine.workers)
    bits = -(KV_TYPES[now.type_k].bits + KV_TYPES[now.type_v].bits)
    wanted = (bits, -now.n_ctx) if choice.found.goal is not Goal.CONTEXT else (-now.n_ctx, bits)
    if choice.found.goal is Goal.SPEED:
        return (0.0, not is_whole, n_machines, *wanted)
    return (0.0, not is_whole, *wanted, n_machines)


def _off_the_gpu(configuration: Configuration) -> Configuration:
    """The same with nothing on a GPU, which the machine that runs it may have all the same."""
    draft = configuration.draft
    return replace(
        configuration,
        n_gpu_layers=0,
        draft=None if draft is None else replace(draft, n_gpu_layers=0),
    )
