"""The best choice of a space for a goal, and the even split of layers among GPUs.

llama.cpp shares layers by free memory. But the last GPU also has the output layer, and each its own
buffers: one is full while another has room, which shares in whole layers use.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from engine.errors import PresetError
from engine.memory.estimate import Estimate, cached_by_layer
from engine.memory.hardware import Device
from engine.memory.placement import place
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
    taken, best = space, best_choice(space, goal, offload)
    if space.base.tensor_split or len(space.gpus) < 2:
        return taken, best
    knobs, steps = best or (replace(space.choices()[-1], placement=space.last), space.least)
    splits = (_split_for(space, model, (knobs, steps)), _fast_split(space, model, (knobs, steps)))
    for split in dict.fromkeys(filter(None, splits)):
        shared = replace(space, base=replace(space.base, tensor_split=split))
        found = best_choice(shared, goal, offload)
        if found and (best is None or _is_better(space, goal, offload, found, best)):
            taken, best = shared, found
    return taken, best


def _fast_split(space: Space, model: Model, point: Point) -> tuple[float, ...] | None:
    """The even split at the fastest placement, before that of a choice, where it fits.

    With experts in RAM the first layers are small: llama.cpp's shares leave their GPUs empty, and
    faster placements fit with other shares only.
    """
    knobs, steps = point

    def fits(index: int) -> bool:
        return space.room(replace(knobs, placement=index), steps).together >= 0

    for index in range(bisect(0, knobs.placement, fits), knobs.placement):
        placed = replace(knobs, placement=index)
        split = _split_for(space, model, (placed, steps))
        if split is not None:
            now = replace(space.configuration(placed, steps), tensor_split=split)
            if space.cost(now).fits(space.margin_bytes):
                return split
    return None


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


def _split_for(space: Space, model: Model, point: Point) -> tuple[float, ...] | None:
    """The even split at a choice."""
    split: tuple[float, ...] | None = None
    try:
        estimate = space.estimate(*point)
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
    """The layers of each GPU that fill the same share of its room.

    None where that is how they lie, or a GPU has no room at all.
    """
    now = estimate.configuration
    gpus = [each for each in estimate.devices if each.device.kind == "gpu"]
    if len(gpus) < 2 or now.split_mode != "layer" or now.n_gpu_layers == 0:
        return None
    lying = _layers(model, estimate)
    if len(lying) < len(gpus):
        return None
    rooms = [
        each.left_bytes
        - margin_bytes
        + sum(nbytes for device, nbytes in lying if device == each.device)
        for each in gpus
    ]
    if min(rooms) <= 0:
        return None
    found = _apportioned([nbytes for _, nbytes in lying], rooms)
    layers = [sum(device == each.device for device, _ in lying) for each in gpus]
    return None if found == layers else tuple(map(float, found))


def _layers(model: Model, estimate: Estimate) -> list[tuple[Device, int]]:
    """The GPU of each layer that lies on one, in their order, and what moves with the layer."""
    now = estimate.configuration
    devices = tuple(each.device for each in estimate.devices)
    gpus = tuple(device for device in devices if device.kind == "gpu")
    cpu = next(device for device in devices if device.kind == "cpu")
    weights = weights_of(model.file, now.tensor_overrides, now.n_cpu_moe)
    where = place(weights, now, gpus, cpu)
    cached: dict[int, int] = {}
    if now.offload_kqv:
        cached = cached_by_layer(model.architecture, now, estimate.target, devices)
    sizes = [nbytes + cached.get(index, 0) for index, nbytes in enumerate(weights.layer_bytes)]
    sizes.append(weights.output_bytes + weights.tied_bytes)
    lying = zip((*where.layer_devices, where.output_device), sizes, strict=True)
    return [(device, nbytes) for device, nbytes in lying if device.kind == "gpu"]


SHARE_STEPS = 30
"""Halvings of the share: after them it is known to a billionth."""


def _apportioned(sizes: list[int], rooms: list[int]) -> list[int]:
    """The number of layers of each GPU, in their order, with the least share of its room in use."""

    def shared(share: float) -> list[int] | None:
        counts, rest = [], deque(sizes)
        for room in rooms:
            held = count = 0
            while rest and held + rest[0] <= share * room:
                held += rest.popleft()
                count += 1
            counts.append(count)
        return None if rest else counts

    low, high = 0.0, sum(sizes) / min(rooms)
    for _ in range(SHARE_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if shared(middle) else (middle, high)
    return shared(high * (1 + 1e-6)) or []
