"""The best configuration of a setup for a goal."""

from dataclasses import dataclass, replace

from engine.configuration import Configuration
from engine.planning.goals import Goal, SearchLimits
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.search import SearchResult, search
from engine.planning.workers import with_workers

GOAL_TEXTS = {
    Goal.CONTEXT: "the most tokens, then the cache with most bits",
    Goal.QUALITY: "most cache bits, largest batches, then most tokens",
    Goal.SPEED: "a draft model, most cache bits, then the fastest layers",
    Goal.BALANCED: "a balance of 32k tokens, cache bits and speed",
}


@dataclass(frozen=True, slots=True)
class FitResult:
    """The best configuration for a goal."""

    found: SearchResult
    plan: Plan
    """The same as a plan, for what takes one, such as an export."""


def fit(
    setup: Setup, goal: Goal, planner: Planner, limits: SearchLimits | None = None
) -> FitResult:
    """The best configuration for a goal on the machine of a setup and the workers that it names.

    Args:
        setup: The model, the program and the machine; its other knobs stay.
        goal: What is to be best.
        planner: Knows the models.
        limits: What the search has to keep to.

    Raises:
        HardwareError: the machine cannot be.
        DoesNotFitError: nothing that is allowed fits it.
    """
    if setup.machine.workers:
        setup = replace(setup, target="llama-server")
    found = search_setup(setup, goal, planner, limits)
    return FitResult(found, planner.plan(setup.with_configuration(found.configuration)))


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


def _off_the_gpu(configuration: Configuration) -> Configuration:
    """The same with nothing on a GPU, which the machine that runs it may have all the same."""
    draft = configuration.draft
    return replace(
        configuration,
        n_gpu_layers=0,
        draft=None if draft is None else replace(draft, n_gpu_layers=0),
    )
