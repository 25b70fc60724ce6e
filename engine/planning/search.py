"""The best configuration of a model for a goal, in the free memory of each device.

The search enumerates K/V types, ubatch sizes and the use of the draft model. The offload level is
bisected for the first that fits, the context for the largest.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log2
from typing import NamedTuple

from engine.configuration import Configuration, DraftConfiguration, KVTypes, PredictorName
from engine.errors import HardwareError, PresetError
from engine.memory.compute import without_cuda_kernel
from engine.memory.estimate import DoesNotFitError, Estimate, Estimator, estimator, with_n_ctx
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD, is_whole
from engine.memory.terms import Target
from engine.model.architecture import Model
from engine.model.vocabulary import check_headers
from engine.planning.cache_types import with_budget, with_kv_types
from engine.planning.offload import (
    REFUSED,
    FreeBytes,
    Offload,
    OffloadLevel,
    bisect,
    filling,
    first_fitting,
    free_bytes,
    offload_levels,
)
from engine.planning.split import even_split, splits_beside
from engine.planning.verdict import does_not_fit
from engine.policy.known import Known
from engine.policy.pairs import FAST_PAIRS, WHOLE, guessed_cost

UBATCHES = (512, 256, 128)
"""Smaller ubatches free memory and read prompts slower."""
MIN_N_CTX = 8192
"""Smallest context of a slot if the user names none."""
BALANCED_N_CTX = 32768
"""Context of a slot beyond which the goal `balanced` sees no gain."""
DRAFT_GAIN = 0.5
"""Gain of a draft model for `balanced`, as log2 of the speed."""
SMALL_UBATCH_COST = 0.25
"""Cost of halving the ubatch for `balanced`, as log2 of the speed."""
SPEED_TOLERANCE = 0.5
"""Log2 of a speed ratio that does not count: one more layer in RAM is no reason for less context or
fewer cache bits."""
MAX_SPLIT_ROUNDS = 4
"""Number of corrections of a split; compute buffers move with the layers."""


class Goal(StrEnum):
    """Goal of a search.

    Every goal but `balanced` first offloads as many layers as fit, within 1.4 times the best speed,
    and optimises inside that.
    """

    CONTEXT = "context"
    """Most tokens, then most cache bits."""
    QUALITY = "quality"
    """Most cache bits, then the largest ubatch, then most tokens."""
    SPEED = "speed"
    """A draft model if there is one, then most cache bits, the largest ubatch, the fastest level,
    most tokens."""
    BALANCED = "balanced"
    """Tokens up to 32,768 against speed and cache bits."""


class LimitsError(PresetError):
    """The limits of a search contradict each other."""

    title = "These limits contradict each other"


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Bounds of a search; None is the default of llama.cpp or of the model."""

    min_n_ctx: int | None = None
    """Tokens of a slot; None is 8192, or the training context if that is smaller."""
    max_n_ctx: int | None = None
    """Tokens of a slot; None is the training context."""
    pairs: tuple[KVTypes, ...] | None = None
    """K/V types, the best first; None is those that passed the quality gates, else f16, q8_0 and
    q4_0."""
    cache_bytes: int | None = None
    """Maximum size of the KV cache."""
    offload: Offload = Offload.PARTIAL
    must_draft: bool = False
    """Whether a given draft model must be used."""
    can_shrink_batches: bool = True
    """Whether ubatches under 512 may be chosen."""

    def __post_init__(self) -> None:
        for name, value in (("smallest", self.min_n_ctx), ("largest", self.max_n_ctx)):
            if value is not None and value < 1:
                raise LimitsError(f"the {name} context is {value} tokens: set 1 or more")
        if self.min_n_ctx and self.max_n_ctx and self.min_n_ctx > self.max_n_ctx:
            raise LimitsError(
                f"the minimum context of {self.min_n_ctx} tokens exceeds the maximum of "
                f"{self.max_n_ctx}: lower the minimum or raise the maximum"
            )
        if self.pairs == ():
            raise LimitsError("no cache type is allowed: allow one, such as f16 or q8_0")


class Variant(NamedTuple):
    """A candidate without its context; `level` and `pair` are indices, the best first."""

    level: int
    pair: int
    n_ubatch: int
    with_draft: bool


class Point(NamedTuple):
    """A candidate with its context in steps of 256 tokens."""

    choice: Variant
    steps: int


@dataclass(slots=True)
class Space:
    """All candidates of a search and their memory, each estimated once."""

    base: Configuration
    """Fields that all candidates share."""
    cost: Estimator
    levels: tuple[OffloadLevel, ...]
    pairs: tuple[KVTypes, ...]
    ubatches: tuple[int, ...]
    drafts: tuple[bool, ...]
    margin_bytes: int
    n_ctx_range: tuple[int, int]
    """Smallest and largest context in tokens, all slots together."""
    pair_costs: tuple[float, ...] = ()
    """Cost of each of `pairs` for `balanced`, as log2 of the context."""
    _free: dict[Point, FreeBytes] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.pair_costs = self.pair_costs or tuple(map(guessed_cost, self.pairs))

    @property
    def least(self) -> int:
        """The smallest context in steps."""
        return -(-self.n_ctx_range[0] // PAD)

    @property
    def most(self) -> int:
        """The largest context in steps."""
        return max(self.least, -(-self.n_ctx_range[1] // PAD))

    @property
    def all_levels(self) -> tuple[int, int]:
        """Index of the first and of the last offload level."""
        return 0, len(self.levels) - 1

    def choices(self) -> list[Variant]:
        """Every choice at the first offload level, those that need most memory first."""
        return [
            Variant(0, pair, n_ubatch, with_draft)
            for pair in range(len(self.pairs))
            for n_ubatch in self.ubatches
            for with_draft in self.drafts
        ]

    def tokens(self, steps: int) -> int:
        """Context of `steps`; the training context need not be a multiple of 256."""
        return min(steps * PAD, self.n_ctx_range[1])

    def configuration(self, choice: Variant, steps: int) -> Configuration:
        """The configuration of a candidate."""
        base, level = self.base, self.levels[choice.level]
        chosen = replace(
            level.of(with_kv_types(base, self.pairs[choice.pair])),
            n_batch=max(base.n_batch, choice.n_ubatch),
            n_ubatch=choice.n_ubatch,
        )
        if base.draft is not None:
            named = base.speculation.predictor
            other = PredictorName.SUFFIX if named is PredictorName.DRAFT else named
            predictor = PredictorName.DRAFT if choice.with_draft else other
            speculation = replace(base.speculation, predictor=predictor)
            draft = base.draft if choice.with_draft else None
            chosen = replace(chosen, draft=draft, speculation=speculation)
        return with_n_ctx(chosen, self.tokens(steps))

    def estimate(self, choice: Variant, steps: int) -> Estimate:
        """The memory of a candidate; raises `PresetError` if llama.cpp refuses it."""
        return self.cost(self.configuration(choice, steps))

    def free(self, choice: Variant, steps: int) -> FreeBytes:
        """Bytes that a candidate leaves free beyond the margin."""
        key = Point(choice, steps)
        if key not in self._free:
            try:
                self._free[key] = free_bytes(self.estimate(choice, steps), self.margin_bytes)
            except PresetError:
                self._free[key] = REFUSED
        return self._free[key]

    def first_fitting(self, choice: Variant, steps: int, levels: tuple[int, int]) -> int | None:
        """The fastest of some offload levels that fits a context."""
        return first_fitting(lambda n: self.free(choice._replace(level=n), steps), *levels)

    def largest(self, choice: Variant, least: int = 0) -> int | None:
        """The largest context of a choice in steps; None if the smallest does not fit."""
        low = least or self.least
        found = bisect(low, self.most + 1, lambda steps: self.free(choice, steps).least < 0) - 1
        return None if found < low else found

    def near(self, first: int) -> tuple[int, int]:
        """First and last offload level within 1.4 times the time of `first`."""
        fastest, last = self.levels[first].slowness, first
        while fastest and last < len(self.levels) - 1:
            if self.levels[last + 1].slowness > fastest + SPEED_TOLERANCE:
                break
            last += 1
        return first, last

    def key(self, goal: Goal, found: Point) -> tuple[float, ...]:
        """Sort key of candidates that are about as fast, the best last."""
        (level, pair, n_ubatch, with_draft), steps = found
        match goal:
            case Goal.CONTEXT:
                return (steps, -pair, n_ubatch, -level, with_draft)
            case Goal.QUALITY:
                return (-pair, n_ubatch, steps, -level, with_draft)
            case Goal.SPEED:
                return (with_draft, -pair, n_ubatch, -level, steps)
            case Goal.BALANCED:
                cost = self.levels[level].slowness + self.pair_costs[pair]
                cost += log2(self.ubatches[0] / n_ubatch) * SMALL_UBATCH_COST
                gain = log2(steps * PAD) + DRAFT_GAIN * with_draft
                return (gain - cost, steps, n_ubatch, -pair, -level)


class Optimum(NamedTuple):
    """The result of a search."""

    space: Space
    best: Point

    @property
    def configuration(self) -> Configuration:
        """The best configuration."""
        return self.space.configuration(*self.best)

    @property
    def estimate(self) -> Estimate:
        """The memory of the best configuration."""
        return self.space.estimate(*self.best)


def best_of(space: Space, goal: Goal, offload: Offload) -> Point | None:
    """The best candidate for a goal; None if nothing fits."""
    groups = [space.choices()]
    if goal is Goal.QUALITY:
        groups = [[c for c in groups[0] if c.pair == pair] for pair in range(len(space.pairs))]
    for choices in groups:
        if goal is Goal.BALANCED or offload is Offload.ANY:
            best = _best_within(space, goal, choices, space.all_levels)
        else:
            best = _best_near_fastest(space, goal, choices, space.least)
        if best and goal is Goal.CONTEXT and offload is not Offload.ANY:
            # More cache bits may fit a little further down.
            best = _best_near_fastest(space, goal, choices, best.steps)
        if best is not None:
            return best
    return None


def _best_near_fastest(
    space: Space, goal: Goal, choices: Sequence[Variant], steps: int
) -> Point | None:
    """The best candidate on levels about as fast as the fastest that fits a context."""
    first = space.all_levels[1] + 1
    for choice in reversed(choices):  # the smallest come last
        found = space.first_fitting(choice, steps, (0, first - 1)) if first else None
        first = first if found is None else found
    if first > space.all_levels[1]:
        return None
    return _best_within(space, goal, choices, space.near(first))


def _best_within(
    space: Space, goal: Goal, choices: Sequence[Variant], levels: tuple[int, int]
) -> Point | None:
    """The candidate with the greatest key; a level is tried only where it can still win."""
    best: Point | None = None
    for choice in choices:
        level: int | None = levels[0]
        while level is not None and level <= levels[1]:
            placed = choice._replace(level=level)
            low = _winning_steps(space, goal, placed, best)
            if low > space.most:
                break
            fitting = space.first_fitting(choice, low, (level, levels[1]))
            if fitting == level:
                best = Point(placed, space.largest(placed, low) or low)
                fitting = level + 1
            level = fitting
    return best


def _winning_steps(space: Space, goal: Goal, choice: Variant, best: Point | None) -> int:
    """The smallest context with which a choice beats the best candidate; over `most` if none."""

    def wins(steps: int) -> bool:
        key = space.key(goal, Point(choice, steps))
        return best is None or key > space.key(goal, best)

    return bisect(space.least, space.most + 1, wins)


def best_split(
    space: Space, model: Model, goal: Goal, offload: Offload
) -> tuple[Space, Point | None]:
    """The best candidate and its space, with llama.cpp's split of the layers or with an even one.

    llama.cpp splits by free memory. The last GPU also holds the output layer, and each GPU its own
    buffers, so one is full while another has free memory.
    """
    chosen, best = space, best_of(space, goal, offload)
    if space.base.tensor_split:
        return chosen, best
    smallest = Point(space.choices()[-1]._replace(level=space.all_levels[1]), space.least)
    point: Point | None = best or smallest
    tried = set[tuple[float, ...]]()
    while point is not None:
        found_splits = dict.fromkeys(_splits(chosen, model, point))
        splits = [split for split in found_splits if split not in tried]
        tried.update(splits)
        point = None
        for split in splits:
            shared = replace(space, base=replace(space.base, tensor_split=split))
            if not _is_worth_a_search(shared, chosen, best or smallest):
                continue
            found = best_of(shared, goal, offload)
            if found and (best is None or _is_better(space, goal, offload, found, best)):
                chosen, best, point = shared, found, found
    return chosen, best


def _is_worth_a_search(split: Space, now: Space, point: Point) -> bool:
    """Whether a split allows more context, or the smallest context at a faster level."""
    choice, steps = point
    if steps < split.most and split.free(choice, steps + 1).least >= 0:
        return True
    fastest = now.first_fitting(choice, now.least, (0, choice.level))
    last = choice.level if fastest is None else fastest - 1
    return last >= 0 and split.first_fitting(choice, now.least, (0, last)) is not None


def _splits(space: Space, model: Model, point: Point) -> Iterator[tuple[float, ...]]:
    """The splits to try at a candidate: the even one, and those with one layer moved.

    Also the even split at a faster level: with experts in RAM the first layers are small, so
    llama.cpp's split leaves their GPU nearly empty.
    """
    if even := _split_at(space, model, point):
        yield even
    with suppress(PresetError):
        yield from splits_beside(model, space.estimate(*point))
    choice, steps = point

    def fits(level: int) -> bool:
        return space.free(choice._replace(level=level), steps).together >= 0

    for level in range(bisect(0, choice.level, fits), choice.level):
        placed = choice._replace(level=level)
        if split := _split_at(space, model, Point(placed, steps)):
            now = replace(space.configuration(placed, steps), tensor_split=split)
            if space.cost(now).fits(space.margin_bytes):
                yield split
                return


def _split_at(space: Space, model: Model, point: Point) -> tuple[float, ...] | None:
    split: tuple[float, ...] | None = None
    try:
        estimate = space.estimate(*point)
        for _ in range(MAX_SPLIT_ROUNDS):
            better = even_split(model, estimate, space.margin_bytes)
            if better is None:
                return split
            split = better
            estimate = space.cost(replace(estimate.configuration, tensor_split=split))
    except PresetError:
        return None  # llama.cpp refuses it with any split
    return split


def _is_better(space: Space, goal: Goal, offload: Offload, other: Point, best: Point) -> bool:
    """Whether a candidate beats another: a clearly faster level comes first."""
    by_speed = goal is not Goal.BALANCED and offload is not Offload.ANY
    if goal is Goal.QUALITY and other.choice.pair != best.choice.pair:
        by_speed = False
    ours, theirs = other.choice.level, best.choice.level
    if by_speed and ours > space.near(theirs)[1]:
        return False
    if by_speed and theirs > space.near(ours)[1]:
        return True
    return space.key(goal, other) > space.key(goal, best)


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
) -> Optimum:
    """Find the best candidate for a goal that fits, with its search space.

    Args:
        model: The model.
        devices: GPUs and RAM.
        goal: What to optimise.
        target: The program that runs the model.
        margin_bytes: Bytes that stay free on each device.
        cost: Memory of a configuration; needed if `base` names other files.
        draft: A model that can draft.
        base: Fields that the search does not change.
        limits: Bounds of the search.
        known: Measured quality of the K/V types of the model; types that failed are left out.

    Raises:
        DoesNotFitError: nothing fits; names the device that is short.
        PresetError: llama.cpp refuses every candidate, or the limits contradict each other.
        IncompatiblePairError: the draft model has another vocabulary.
        HardwareError: no RAM among the devices, or a negative margin.
    """
    if not any(device.kind == "cpu" for device in devices):
        raise HardwareError("the devices include no RAM, which every model needs: add RAM")
    if margin_bytes < 0:
        raise HardwareError(f"the margin is {margin_bytes} bytes: write 0 or more")
    if draft is not None:
        check_headers(model.file, draft.file)
    limits, known = limits or SearchLimits(), known or Known()
    if draft is None and limits.must_draft:
        raise PresetError("a draft model is required, but none is set: add --draft MODEL")
    start = base or Configuration(model_path=model.file.path, n_ctx=PAD)
    if draft is not None and start.draft is None:
        start = replace(start, draft=DraftConfiguration(draft.file.path, PAD))
    pairs = limits.pairs or _pairs(model, start, devices, known)
    if goal is Goal.SPEED and limits.pairs is None:
        pairs = known.fastest_first(pairs)
    cost = cost or estimator(model, devices, target=target, draft=draft)
    smaller = (n for n in UBATCHES if n < start.n_ubatch and limits.can_shrink_batches)
    space = Space(
        start,
        with_budget(cost, limits.cache_bytes),
        levels=offload_levels(model, devices, limits.offload),
        pairs=pairs,
        ubatches=(start.n_ubatch, *smaller),
        drafts=(False,) if draft is None else (True,) if limits.must_draft else (True, False),
        margin_bytes=margin_bytes,
        n_ctx_range=_n_ctx_range(model, goal, limits, start.n_slots),
        pair_costs=known.costs(pairs),
    )
    chosen, best = best_split(space, model, goal, limits.offload)
    if best is None:
        raise _nothing_fits(space, limits)
    return Optimum(chosen, best)


def _pairs(
    model: Model, start: Configuration, devices: tuple[Device, ...], known: Known
) -> tuple[KVTypes, ...]:
    """The K/V types of a search, on CUDA only those with a kernel."""
    whole = start.kv_types if start.kv_types == KVTypes("bf16", "bf16") else WHOLE
    has_gpu = any(device.kind == "gpu" for device in devices)
    if any(gpu.runs_cuda for gpu in devices) and without_cuda_kernel(model.architecture):
        return (whole,)
    if not known.has_verdict:
        return (whole, *FAST_PAIRS[1:])
    measured = [pair for pair in known.allowed_types() if not has_gpu or pair in FAST_PAIRS]
    return (whole, *(pair for pair in measured if not is_whole(pair)))


def _n_ctx_range(model: Model, goal: Goal, limits: SearchLimits, n_slots: int) -> tuple[int, int]:
    trained = model.architecture.n_ctx_train
    least = limits.min_n_ctx or min(MIN_N_CTX, limits.max_n_ctx or trained, trained)
    most = max(limits.max_n_ctx or trained, least)
    if goal is Goal.BALANCED and limits.max_n_ctx is None:
        most = max(min(most, BALANCED_N_CTX), least)
    return least * n_slots, most * n_slots


def _nothing_fits(space: Space, limits: SearchLimits) -> PresetError:
    """Which device is short with the smallest candidate, or why llama.cpp refuses them all."""
    refusal: PresetError | None = None
    for choice in reversed(space.choices()):  # the smallest come last
        try:
            smallest = space.configuration(choice, space.least)
            found = space.cost(filling(smallest, space.levels, space.cost, space.margin_bytes))
        except PresetError as error:
            refusal = refusal or error
        else:
            changes = [
                *["layers in RAM (offload partial)"] * (limits.offload is Offload.NONE),
                *["a smaller minimum context"] * (limits.min_n_ctx is not None),
                "a smaller quantisation or model", "a smaller margin",
            ]  # fmt: skip
            return DoesNotFitError(does_not_fit(found, space.margin_bytes, changes))
    assert refusal is not None
    return refusal
