"""The best choice of a space for a goal, and the even split of layers among GPUs.

llama.cpp shares layers by free memory. But the last GPU also has the output layer, and each its own
buffers: one is full while another has room, which shares in whole layers use.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from engine.errors import PresetError
from engine.memory.estimate import Estimate
from engine.memory.hardware import Device
from engine.memory.placement import place
from engine.memory.terms import TermKind
from engine.memory.weights import weights_of
from engine.model.architecture import Model
from engine.planning.goals import Goal, Offload
from engine.planning.placements import bisect
from engine.planning.space import Knobs, Point, Rank, Space, last_as_fast, rank

Places = tuple[int, int]
"""The first and the last placement that may be taken."""

Value = Callable[[Point], Rank]


def best_choice(space: Space, goal: Goal, offload: Offload) -> Point | None:
    """The best choice for a goal, None where nothing fits."""

    def value(point: Point) -> Rank:
        return rank(space, goal, *point)

    choices = space.choices()
    match goal:
        case Goal.CONTEXT:
            return _farthest(space, choices, _places(space, choices, offload), value)
        case Goal.QUALITY:
            return _finest(space, offload, value)
        case Goal.SPEED:
            return _fastest(space, value)
        case Goal.BALANCED:
            return best_point(space, choices, (0, space.last), value)


def best_point(
    space: Space, choices: Iterable[Knobs], places: Places, value: Value
) -> Point | None:
    """The choice, at a placement, of the greatest value with its largest context.

    Of the placements from `first` to `last` none is faster than `first`, and none leaves the GPUs
    more than `last`. So they are looked into only where the context that `first` needs to win fits
    on the GPUs at `last`. The first placement stands alone: the first layer that leaves can cost a
    GPU more than it frees.
    """
    best: Point | None = None
    ranges = [((places[0] + 1, places[1]), knobs) for knobs in choices if places[0] < places[1]]
    ranges += [((places[0], places[0]), knobs) for knobs in choices]
    ranges.sort(key=lambda each: value((replace(each[1], placement=each[0][0]), space.most)))
    while ranges:
        (first, last), choice = ranges.pop()
        knobs = replace(choice, placement=first)
        least = _winning(space, knobs, best, value)
        if least is None or space.room(replace(choice, placement=last), least).together < 0:
            continue
        if first < last:
            middle = (first + last) // 2
            halves = [(first, middle), (middle + 1, last)]
            halves.sort(key=lambda each: value((replace(choice, placement=each[0]), space.most)))
            ranges += [(each, choice) for each in halves]
        elif (largest := space.largest(knobs, least)) is not None:
            best = knobs, largest
    return best


def _winning(space: Space, knobs: Knobs, best: Point | None, value: Value) -> int | None:
    """The least context with which a choice is better than the best so far."""

    def wins(steps: int) -> bool:
        return best is None or value((knobs, steps)) > value(best)

    found = bisect(space.least, space.most + 1, wins)
    return None if found > space.most else found


def _finest(space: Space, offload: Offload, value: Value) -> Point | None:
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


def _fastest(space: Space, value: Value) -> Point | None:
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
    """The placements that may be taken: all, or those about as fast as the fastest that fits."""
    if offload is Offload.ANY:
        return 0, space.last
    first = space.last + 1
    for knobs in reversed(choices):  # the smallest come last
        found = space.first_fitting(knobs, space.least, (0, first - 1)) if first else None
        first = first if found is None else found
    return None if first > space.last else (first, last_as_fast(space, first))


def _farthest(
    space: Space, choices: list[Knobs], places: Places | None, value: Value
) -> Point | None:
    """The best of the choices at the largest context that any of them reaches at the placements.

    At that context a finer cache may lie a little farther down than the places, as long as it is
    hardly slower than the fastest that reaches it.
    """
    best = places and best_point(space, choices, places, lambda point: (point[1],))
    if not places or best is None:
        return None
    steps, found = best[1], []
    for knobs in choices:
        index = space.first_fitting(knobs, steps, (places[0], space.last))
        found += [] if index is None else [replace(knobs, placement=index)]
    last = last_as_fast(space, min(knobs.placement for knobs in found))
    return max(((knobs, steps) for knobs in found if knobs.placement <= last), key=value)


MAX_ROUNDS = 4
"""Buffers move with the layers: after so many rounds a split hardly changes."""


def best_shared(
    space: Space, model: Model, goal: Goal, offload: Offload
) -> tuple[Space, Point | None]:
    """The best choice of a goal and its space: with llama.cpp's split, or with an even one."""
    best = best_choice(space, goal, offload)
    split = None if space.base.tensor_split else _split_for(space, model, best)
    if split is None:
        return space, best
    shared = replace(space, base=replace(space.base, tensor_split=split))
    other = best_choice(shared, goal, offload)
    if other is None or (best is not None and not _is_better(space, goal, offload, other, best)):
        return space, best
    return shared, other


def _is_better(space: Space, goal: Goal, offload: Offload, other: Point, best: Point) -> bool:
    """Whether a choice is better for its goal: clearly faster placements come first."""
    by_speed = goal is not Goal.BALANCED and offload is not Offload.ANY
    by_speed = by_speed and (goal is not Goal.QUALITY or other[0].pair == best[0].pair)
    ours, theirs = other[0].placement, best[0].placement
    if by_speed and ours > last_as_fast(space, theirs):
        return False
    if by_speed and theirs > last_as_fast(space, ours):
        return True
    return rank(space, goal, *other) > rank(space, goal, *best)


def _split_for(space: Space, model: Model, best: Point | None) -> tuple[float, ...] | None:
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
