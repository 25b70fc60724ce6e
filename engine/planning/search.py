"""The best configuration of a model for a goal, under a memory budget for each device."""

from dataclasses import dataclass, replace

from engine.configuration import Configuration, DraftConfiguration, KVTypes
from engine.errors import HardwareError, PresetError
from engine.memory.cuda_kernels import has_cuda_kernel
from engine.memory.estimate import DoesNotFitError, Estimate, Estimator, estimator
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD, is_whole
from engine.memory.terms import Target
from engine.model.architecture import Model
from engine.model.vocabulary import check_headers
from engine.planning.cache_types import with_budget
from engine.planning.explain import (
    Alternative,
    ChosenKnob,
    alternatives,
    chosen_knobs,
    chosen_split,
)
from engine.planning.goals import (
    BALANCED_N_CTX,
    MICRO_BATCHES,
    USUAL_LEAST_N_CTX,
    Goal,
    Offload,
    SearchLimits,
)
from engine.planning.placements import filling, placements
from engine.planning.solve import best_shared
from engine.planning.space import Space
from engine.planning.verdict import does_not_fit
from engine.policy.known import Known, Standing
from engine.policy.pairs import FAST_PAIRS, WHOLE


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best configuration for a goal, and why it is."""

    goal: Goal
    configuration: Configuration
    estimate: Estimate
    knobs: tuple[ChosenKnob, ...]
    """What was taken at each knob and what that buys."""
    alternatives: tuple[Alternative, ...]
    """What else fits, each better in something."""
    quality: Standing
    """What is known of the cache types' quality on this model, and from where."""


def search(
    model: Model,
    devices: tuple[Device, ...],
    goal: Goal,
    *,
    target: Target = "kvchat",
    margin_bytes: int,
    cost: Estimator | None = None,
    draft: Model | None = None,
    base: Configuration | None = None,
    limits: SearchLimits | None = None,
    known: Known | None = None,
) -> SearchResult:
    """The best configuration of a model for a goal that fits the free memory of each device.

    It chooses context, cache types, layers and experts in RAM, micro-batch and the use of `draft`,
    a model that could draft for this one. Everything else stays as in `base`. `cost` knows the
    other files that `base` names, and is needed where there are some. Contexts end at what the
    model was trained on unless `limits` say otherwise. Where cache kinds of the model were
    measured, as `known` says, only those that keep the gates are chosen among, and their figures
    weigh them; else the order for all models does.

    Raises:
        DoesNotFitError: nothing that the limits allow fits; says what is short on which device.
        PresetError: llama.cpp would refuse every choice, or the limits contradict each other.
        IncompatiblePairError: the headers show that the draft cannot draft for the model.
        HardwareError: there is no main memory among the devices, or the margin is negative.
    """
    _check(devices, margin_bytes)
    if draft is not None:
        check_headers(model.file, draft.file)
    limits, known = limits or SearchLimits(), known or Known()
    start = _start(model, base, draft)
    pairs = _pairs(model, start, devices, limits, known)
    if goal is Goal.SPEED and limits.pairs is None:
        pairs = known.quickest_first(pairs)
    cost = cost or estimator(model, devices, target=target, draft=draft)
    space = Space(
        start,
        with_budget(cost, limits.cache_bytes),
        placements=placements(model, devices, limits.offload),
        pairs=pairs,
        micro_batches=_micro_batches(start, limits),
        drafts=_drafts(draft, limits),
        margin_bytes=margin_bytes,
        n_ctx_range=_n_ctx_range(model, goal, limits, start.n_slots),
        pair_costs=known.costs(pairs),
    )
    shared, best = best_shared(space, model, goal, limits.offload)
    if best is None:
        raise nothing_fits(space, limits)
    estimate = shared.estimate(*best)
    chosen = estimate.configuration
    split = () if shared is space else (chosen_split(space, shared, best),)
    return SearchResult(
        goal,
        chosen,
        estimate,
        (*split, *chosen_knobs(shared, model, best)),
        alternatives(shared, model, best),
        known.standing(chosen.kv_types),
    )


def _check(devices: tuple[Device, ...], margin_bytes: int) -> None:
    if not any(device.kind == "cpu" for device in devices):
        raise HardwareError("no RAM among the devices: a model always needs some")
    if margin_bytes < 0:
        raise HardwareError(f"the margin is {margin_bytes} bytes: write 0 or more")


def _start(model: Model, base: Configuration | None, draft: Model | None) -> Configuration:
    start = base or Configuration(model_path=model.file.path, n_ctx=PAD)
    if draft is not None and start.draft is None:
        return replace(start, draft=DraftConfiguration(draft.file.path, PAD))
    return start


def _pairs(
    model: Model,
    start: Configuration,
    devices: tuple[Device, ...],
    limits: SearchLimits,
    known: Known,
) -> tuple[KVTypes, ...]:
    """The cache types to choose among: no quantised one where CUDA has no kernel for it."""
    if limits.pairs is not None:
        return limits.pairs
    whole = start.kv_types if start.kv_types == KVTypes("bf16", "bf16") else WHOLE
    has_gpu = any(device.kind == "gpu" for device in devices)
    if any(gpu.runs_cuda for gpu in devices) and not has_cuda_kernel(model.architecture):
        return (whole,)
    if not known.has_verdict:
        return (whole, *FAST_PAIRS[1:])
    measured = [pair for pair in known.allowed_types() if not has_gpu or pair in FAST_PAIRS]
    return (whole, *(pair for pair in measured if not is_whole(pair)))


def _micro_batches(start: Configuration, limits: SearchLimits) -> tuple[int, ...]:
    if not limits.can_shrink_batches:
        return (start.n_ubatch,)
    return (start.n_ubatch, *(n for n in MICRO_BATCHES if n < start.n_ubatch))


def _drafts(draft: Model | None, limits: SearchLimits) -> tuple[bool, ...]:
    if draft is None and limits.must_draft:
        raise PresetError("a draft model is required but none is named: add --draft MODEL")
    if draft is None:
        return (False,)
    return (True,) if limits.must_draft else (True, False)


def _n_ctx_range(model: Model, goal: Goal, limits: SearchLimits, n_slots: int) -> tuple[int, int]:
    trained = model.architecture.n_ctx_train
    least = limits.min_n_ctx or min(USUAL_LEAST_N_CTX, limits.max_n_ctx or trained, trained)
    most = max(limits.max_n_ctx or trained, least)
    if goal is Goal.BALANCED and limits.max_n_ctx is None:
        most = max(min(most, BALANCED_N_CTX), least)
    return least * n_slots, most * n_slots


def nothing_fits(space: Space, limits: SearchLimits) -> PresetError:
    """The error that says what is short on which device with the smallest choice.

    Where llama.cpp would refuse every choice, the error is its reason.
    """
    refusal: PresetError | None = None
    for knobs in reversed(space.choices()):  # the smallest come last
        try:
            smallest = space.configuration(knobs, space.least)
            now = filling(smallest, space.placements, space.cost, space.margin_bytes)
            found = space.cost(now)
        except PresetError as error:
            refusal = refusal or error
        else:
            return DoesNotFitError(does_not_fit(found, space.margin_bytes, _changes(limits)))
    assert refusal is not None
    return refusal


def _changes(limits: SearchLimits) -> list[str]:
    """What could make something fit."""
    changes = ["a smaller quantisation or model", "a smaller margin"]
    if limits.min_n_ctx is not None:
        changes.insert(0, "a smaller minimum context")
    if limits.offload is Offload.NONE:
        changes.insert(0, "layers in RAM (offload partial)")
    return changes
