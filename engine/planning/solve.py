"""The best choice of a space for a goal, without trying them all.

A goal orders choices knob by knob; costs grow with the context, with the micro-batch and with what
lies on a GPU, so each knob is bisected where an order allows it. The result is that of trying
everything, which the tests do on small spaces.

llama.cpp shares layers by free memory. But the last GPU also has the output layer, and each its own
buffers: one is full while another has room, which shares in whole layers take up.
"""

from collections.abc import Callable
from dataclasses import replace

from engine.errors import PresetError
from engine.memory.estimate import Estimate
from engine.memory.hardware import Device
from engine.memory.placement import place
from engine.memory.terms import TermKind
from engine.memory.weights import weights_of
from engine.model.architecture import Model
from engine.planning.goals import Goal, Offload
from engine.planning.space import Knobs, Rank, Space, bisect, cost_of, last_as_fast, rank

Choice = tuple[Knobs, int]
"""A choice and its context in steps of 256 tokens."""

Places = tuple[int, int]
"""The first and the last placement that may be taken."""


def best_choice(space: Space, goal: Goal, offload: Offload) -> Choice | None:
    """The best choice for a goal, None where nothing fits."""

    def value(choice: Choice) -> Rank:
        return rank(space, goal, *choice)

    match goal:
        case Goal.CONTEXT:
            choices = space.choices()
            return _farthest(space, choices, _places(space, choices, offload), value)
        case Goal.QUALITY:
            return _finest(space, offload, value)
        case Goal.SPEED:
            return _fastest(space, value)
        case Goal.BALANCED:
            return _balanced(space)


def _finest(space: Space, offload: Offload, value: Callable[[Choice], Rank]) -> Choice | None:
    """The best choice with the first pair of cache types that fits, and the first batch."""
    for pair in range(len(space.pairs)):
        of_pair = [knobs for knobs in space.choices() if knobs.pair == pair]
        places = _places(space, of_pair, offload)
        for n_ubatch in space.micro_batches:
            choices = [knobs for knobs in of_pair if knobs.n_ubatch == n_ubatch]
            found = _farthest(space, choices, places, value)
            if found is not None:
                return found
    return None


def _fastest(space: Space, value: Callable[[Choice], Rank]) -> Choice | None:
    """The best choice of the fastest placements, the context counting last."""
    places = _places(space, space.choices(), Offload.PARTIAL)
    if places is None:
        return None
    for knobs in sorted(space.choices(), key=lambda k: value((k, space.least)), reverse=True):
        index = space.first_fitting(knobs, space.least, places)
        if index is not None:
            placed = replace(knobs, placement=index)
            return placed, space.largest(placed) or space.least
    return None


def _places(space: Space, choices: list[Knobs], offload: Offload) -> Places | None:
    """The placements that may be taken: all, or those about as fast as the fastest that fits.

    Once one is known, another choice matters only where it fits a faster placement.
    """
    everywhere = (0, len(space.placements) - 1)
    if offload is Offload.ANY:
        return everywhere
    first: int | None = None
    for knobs in reversed(choices):  # the smallest come last
        if first is None:
            first = space.first_fitting(knobs, space.least, everywhere)
        elif first:
            faster = space.first_fitting(knobs, space.least, (0, first - 1))
            first = first if faster is None else faster
    if first is None:
        return None
    return first, last_as_fast(space, first)


def _farthest(
    space: Space,
    choices: list[Knobs],
    places: Places | None,
    value: Callable[[Choice], Rank],
) -> Choice | None:
    """The best of the choices at the largest context that any of them reaches at the placements.

    At that context a finer cache may lie a little farther down than the places, as long as it is
    hardly slower than the fastest that reaches it.
    """
    if places is None:
        return None
    reached = space.least - 1
    for knobs in reversed(choices):
        reached = max(reached, _reach(space, knobs, places, reached + 1))
    if reached < space.least:
        return None
    fitting = {knobs: _place_for(space, knobs, reached, places) for knobs in choices}
    found = {knobs: index for knobs, index in fitting.items() if index is not None}
    last = last_as_fast(space, min(found.values()))
    return max(
        ((replace(k, placement=index), reached) for k, index in found.items() if index <= last),
        key=value,
    )


def _place_for(space: Space, knobs: Knobs, steps: int, places: Places) -> int | None:
    """The fastest placement at which a context fits: one of the places, else a slower one."""
    found = space.first_fitting(knobs, steps, places)
    end = len(space.placements) - 1
    if found is None and places[1] < end:
        found = space.first_fitting(knobs, steps, (places[1] + 1, end))
    return found


def _reach(space: Space, knobs: Knobs, places: Places, low: int) -> int:
    """The largest context of a choice at any placement, 0 where it is under `low`."""

    def is_too_much(steps: int) -> bool:
        return space.first_fitting(knobs, steps, places) is None

    if low > space.most or is_too_much(low):
        return 0
    beyond = bisect(low, space.most, is_too_much)
    return space.most if beyond is None else beyond - 1


def _balanced(space: Space) -> Choice | None:
    """The choice of the best score, by bounds: what cannot win is not looked at.

    Among placements from `first` to `last` none has more context than the GPUs allow at `last`, and
    none is faster than `first`.
    """
    best: Choice | None = None
    best_rank: Rank = (float("-inf"),)
    for choice in sorted(space.choices(), key=lambda knobs: cost_of(space, knobs)):
        ranges = [(0, len(space.placements) - 1)]
        while ranges:
            first, last = ranges.pop()
            knobs = replace(choice, placement=first)
            if _balance(space, (knobs, space.most)) < best_rank:
                continue
            steps = space.reach(replace(choice, placement=last))
            if steps is None or _balance(space, (knobs, steps)) < best_rank:
                continue
            if first < last:
                middle = (first + last) // 2
                ranges += [(middle + 1, last), (first, middle)]  # the faster half is next
                continue
            steps = space.largest(knobs)
            if steps is not None and _balance(space, (knobs, steps)) > best_rank:
                best, best_rank = (knobs, steps), _balance(space, (knobs, steps))
    return best


def _balance(space: Space, choice: Choice) -> Rank:
    return rank(space, Goal.BALANCED, *choice)


MAX_ROUNDS = 4
"""Buffers move with the layers: after so many rounds a split hardly changes."""


def best_shared(
    space: Space, model: Model, goal: Goal, offload: Offload
) -> tuple[Space, Choice | None]:
    """The best choice of a goal and its space: with llama.cpp's split, or with an even one."""
    best = best_choice(space, goal, offload)
    split = None if space.base.tensor_split else _split_for(space, model, best)
    if split is None:
        return space, best
    shared = space.with_base(replace(space.base, tensor_split=split))
    other = best_choice(shared, goal, offload)
    if other is None or (best is not None and not _is_better(space, goal, offload, other, best)):
        return space, best
    return shared, other


def _is_better(space: Space, goal: Goal, offload: Offload, other: Choice, best: Choice) -> bool:
    """Whether a choice is better for its goal: clearly faster placements come first."""
    by_speed = goal is not Goal.BALANCED and offload is not Offload.ANY
    by_speed = by_speed and (goal is not Goal.QUALITY or other[0].pair == best[0].pair)
    ours, theirs = other[0].placement, best[0].placement
    if by_speed and ours > last_as_fast(space, theirs):
        return False
    if by_speed and theirs > last_as_fast(space, ours):
        return True
    return rank(space, goal, *other) > rank(space, goal, *best)


def _split_for(space: Space, model: Model, best: Choice | None) -> tuple[float, ...] | None:
    """The even split at a choice, or, where none fits, at the smallest one."""
    knobs, steps = best or (space.choices()[-1], space.least)
    split: tuple[float, ...] | None = None
    try:
        estimate = space.estimate(knobs, steps)
        for _ in range(MAX_ROUNDS):
            better = even_split(model, estimate, space.margin_bytes)
            if better is None:
                return split
            split = better
            estimate = space.cost(replace(estimate.configuration, tensor_split=split))
    except PresetError:
        return None  # llama.cpp would refuse it, however it is split
    return split


def even_split(model: Model, estimate: Estimate, margin_bytes: int) -> tuple[float, ...] | None:
    """The layers of each GPU that leave equal room for more context.

    None where a change would move less than one layer, or a GPU has no room at all.
    """
    now = estimate.configuration
    devices = tuple(device.device for device in estimate.devices)
    gpus = tuple(device for device in devices if device.kind == "gpu")
    if len(gpus) < 2 or now.split_mode != "layer" or now.n_gpu_layers == 0:
        return None
    layers = _layers(model, estimate, gpus)
    growing = {
        d.device: d.term(TermKind.WEIGHTS).nbytes + d.term(TermKind.KV).nbytes
        for d in estimate.devices
    }
    n_layers = sum(layers.values())
    per_layer = sum(growing[gpu] for gpu in gpus) / n_layers
    room = [
        d.left_bytes - margin_bytes + layers[d.device] * per_layer
        for d in estimate.devices
        if d.device.kind == "gpu"
    ]
    if min(room) <= 0 or n_layers < len(gpus):
        return None
    found = _apportioned(n_layers, room)
    return None if found == [layers[gpu] for gpu in gpus] else tuple(map(float, found))


def _layers(model: Model, estimate: Estimate, gpus: tuple[Device, ...]) -> dict[Device, int]:
    """The number of layers on each GPU, the output layer counting as one."""
    now = estimate.configuration
    cpu = next(d.device for d in estimate.devices if d.device.kind == "cpu")
    weights = weights_of(model.file, now.tensor_overrides, now.n_cpu_moe)
    where = place(weights, now, gpus, cpu)
    lying = [*where.layer_devices, where.output_device]
    return {gpu: lying.count(gpu) for gpu in gpus}


def _apportioned(n: int, rooms: list[float]) -> list[int]:
    """Share layers so that the least room for each layer is the largest (D'Hondt's method)."""
    found = [1] * len(rooms)
    for _ in range(n - len(rooms)):
        ratios = [room / (count + 1) for room, count in zip(rooms, found, strict=True)]
        found[ratios.index(max(ratios))] += 1
    return found
