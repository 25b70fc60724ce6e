"""The configurations of a search, what each costs, and which of two is better for a goal."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

from engine.configuration import Configuration, KVTypes, PredictorName
from engine.errors import PresetError
from engine.memory.estimate import Estimate, Estimator, with_n_ctx
from engine.memory.kv_cache import PAD, is_quantized, with_types
from engine.memory.terms import TermKind
from engine.planning.goals import Goal
from engine.planning.placements import Placement
from engine.policy.pairs import guessed_cost


class Room(NamedTuple):
    """Where a choice leaves the margin free."""

    on_gpus: bool
    on_cpu: bool
    maybe_on_gpus: bool
    """Whether the GPUs may hold it at this placement or a faster one; never wrongly False."""


NOWHERE = Room(on_gpus=False, on_cpu=False, maybe_on_gpus=False)


@dataclass(frozen=True, slots=True)
class Knobs:
    """One choice of everything but the context; `placement` and `pair` count from the best."""

    placement: int
    pair: int
    n_ubatch: int
    with_draft: bool


class Space:
    """All choices, with the cost of each that was asked for.

    Every cost is computed once. What llama.cpp refuses fits nowhere.
    Contexts count in steps of 256 tokens, from `least` to `most`.
    """

    def __init__(
        self,
        base: Configuration,
        cost: Estimator,
        *,
        placements: tuple[Placement, ...],
        pairs: tuple[KVTypes, ...],
        micro_batches: tuple[int, ...],
        drafts: tuple[bool, ...],
        margin_bytes: int,
        n_ctx_range: tuple[int, int],
        n_slots: int = 1,
        pair_costs: tuple[float, ...] | None = None,
    ) -> None:
        """Take the choices of each knob; the costs of pairs are guessed where none are given."""
        self.base, self.cost = base, cost
        self.placements, self.pairs, self.drafts = placements, pairs, drafts
        self.micro_batches, self.margin_bytes = micro_batches, margin_bytes
        self.n_slots = n_slots
        self.pair_costs = pair_costs or tuple(map(guessed_cost, pairs))
        least, self.limit = n_ctx_range
        self.least = -(-least // PAD)
        self.most = max(self.least, -(-self.limit // PAD))
        self._known: dict[tuple[Knobs, int], Room] = {}
        self._reach: dict[Knobs, int | None] = {}

    def with_base(self, base: Configuration) -> "Space":
        """The same choices around another configuration."""
        return Space(
            base,
            self.cost,
            placements=self.placements,
            pairs=self.pairs,
            micro_batches=self.micro_batches,
            drafts=self.drafts,
            margin_bytes=self.margin_bytes,
            n_ctx_range=(self.least * PAD, self.limit),
            n_slots=self.n_slots,
            pair_costs=self.pair_costs,
        )

    def choices(self) -> list[Knobs]:
        """Every choice but those of placement, the best of each knob first."""
        return [
            Knobs(0, pair, n_ubatch, with_draft)
            for pair in range(len(self.pairs))
            for n_ubatch in self.micro_batches
            for with_draft in self.drafts
        ]

    def configuration(self, knobs: Knobs, steps: int) -> Configuration:
        """The configuration of a choice at a context of `steps` times 256 tokens."""
        placement = self.placements[knobs.placement]
        base = self.base
        chosen = replace(
            with_pair(base, self.pairs[knobs.pair]),
            n_batch=max(base.n_batch, knobs.n_ubatch),
            n_ubatch=knobs.n_ubatch,
            n_gpu_layers=placement.n_gpu_layers,
            n_cpu_moe=placement.n_cpu_moe,
        )
        if base.draft is not None:
            drafting = PredictorName.DRAFT if knobs.with_draft else PredictorName.SUFFIX
            was = base.speculation.predictor
            predictor = drafting if knobs.with_draft or was is PredictorName.DRAFT else was
            chosen = replace(
                chosen,
                draft=base.draft if knobs.with_draft else None,
                speculation=replace(base.speculation, predictor=predictor),
            )
        return with_n_ctx(chosen, self.tokens(steps))

    def tokens(self, steps: int) -> int:
        """The context of a number of steps: training need not be a whole number of them."""
        return min(steps * PAD, self.limit)

    def estimate(self, knobs: Knobs, steps: int) -> Estimate:
        """What a choice costs.

        Raises:
            PresetError: llama.cpp would refuse it.
        """
        return self.cost(self.configuration(knobs, steps))

    def fits(self, knobs: Knobs, steps: int) -> bool:
        """Whether every device keeps the margin free."""
        room = self._room(knobs, steps)
        return room.on_gpus and room.on_cpu

    def _room(self, knobs: Knobs, steps: int) -> Room:
        key = (knobs, steps)
        if key not in self._known:
            try:
                self._known[key] = self._room_of(self.estimate(knobs, steps))
            except PresetError:
                self._known[key] = NOWHERE
        return self._known[key]

    def _room_of(self, estimate: Estimate) -> Room:
        margin = self.margin_bytes
        gpus = [device for device in estimate.devices if device.device.kind == "gpu"]
        cpus = [device for device in estimate.devices if device.device.kind == "cpu"]
        on_gpus, on_cpu = (
            all(device.left_bytes >= margin for device in some if device.total_bytes)
            for some in (gpus, cpus)
        )
        lying = sum(device.term(kind).nbytes for device in gpus for kind in LYING)
        free = sum(max(0, device.device.free_bytes - margin) for device in gpus)
        return Room(on_gpus, on_cpu, lying <= free if len(gpus) > 1 else on_gpus)

    def first_fitting(self, knobs: Knobs, steps: int, places: tuple[int, int]) -> int | None:
        """The fastest of the placements at which a context fits, None where none does.

        Each placement leaves less on a GPU than the one before, so they are bisected. With several
        GPUs each leaves less on all of them together only: the borders between them move, and one
        card can get a layer more. From where all would hold it the placements are tried in turn.
        The first layer that leaves can cost a GPU more in buffers than it frees, and frees main
        memory where GPUs no longer work in a pipeline: the first is tried alone.
        """
        first, last = places

        def at(index: int) -> Knobs:
            return replace(knobs, placement=index)

        if self.fits(at(first), steps):
            return first
        low = bisect(first, last, lambda index: self._may_fit_gpus(at(index), steps))
        for index in range(last + 1 if low is None else low, last + 1):
            room = self._room(at(index), steps)
            if room.on_gpus and room.on_cpu:
                return index
            if not room.on_cpu and index > first:
                return None  # main memory only fills further
        return None

    def _may_fit_gpus(self, knobs: Knobs, steps: int) -> bool:
        return self._room(knobs, steps).maybe_on_gpus

    def largest(self, knobs: Knobs) -> int | None:
        """The largest context of a choice in steps, None where the least does not fit."""
        return self._last_where(knobs, self.fits)

    def reach(self, knobs: Knobs) -> int | None:
        """The largest context that the GPUs may allow at a placement or a faster one.

        None where the least does not fit.
        """
        if knobs not in self._reach:
            self._reach[knobs] = self._last_where(knobs, self._may_fit_gpus)
        return self._reach[knobs]

    def _last_where(self, knobs: Knobs, holds: Callable[[Knobs, int], bool]) -> int | None:
        if not holds(knobs, self.least):
            return None
        beyond = bisect(self.least, self.most, lambda n: not holds(knobs, n))
        return self.most if beyond is None else beyond - 1


LYING = (TermKind.WEIGHTS, TermKind.KV, TermKind.STATE)
"""What moves with the layers."""


def with_pair(configuration: Configuration, pair: KVTypes) -> Configuration:
    """The configuration with a pair of cache types; packed values take flash attention along."""
    flash = configuration.flash_attention
    needs_flash = flash == "auto" and is_quantized(pair.v)
    typed = with_types(configuration, pair)
    return replace(typed, flash_attention="on") if needs_flash else typed


def with_taken_pair(configuration: Configuration, pair: KVTypes) -> Configuration:
    """The configuration with a pair that the user took, such as the one that was measured.

    Where flash attention is off it goes along if packed values need it: whoever takes a pair wants
    it to run. A search leaves it off, and does without such pairs.
    """
    if configuration.flash_attention == "off" and is_quantized(pair.v):
        configuration = replace(configuration, flash_attention="auto")
    return with_pair(configuration, pair)


def bisect(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The first number from low to high where something holds that stays true from there."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


DRAFT_GAIN = 0.5
"""What a draft model gains the balanced goal, in doublings: 1.4 times the speed."""

SMALL_BATCH_COST = 0.25
"""What halving the micro-batch costs the balanced goal: slower prompts, the same replies."""

SPEED_TOLERANCE = 0.5
"""Halvings of the speed that do not count: a layer more or less in main memory is no reason to give
up most of the context, or a finer cache."""

Rank = tuple[float, ...]


def rank(space: Space, goal: Goal, knobs: Knobs, steps: int) -> Rank:
    """What sorts choices of placements that are about as fast, the best last."""
    pair, draft, batch = -knobs.pair, float(knobs.with_draft), knobs.n_ubatch
    placement = -knobs.placement
    match goal:
        case Goal.CONTEXT:
            return (steps, pair, batch, placement, draft)
        case Goal.QUALITY:
            return (pair, batch, steps, placement, draft)
        case Goal.SPEED:
            return (draft, pair, batch, placement, steps)
        case Goal.BALANCED:
            return (log2(steps * PAD) - cost_of(space, knobs), steps, batch, pair, placement)


def last_as_fast(space: Space, first: int) -> int:
    """The last placement that counts as being as fast as one.

    That is any within a factor of 1.4 of its speed; only itself where nothing has left the GPUs.
    """
    fastest = space.placements[first].slowness
    if not fastest:
        return first
    last = first
    while (
        last + 1 < len(space.placements)
        and space.placements[last + 1].slowness <= fastest + SPEED_TOLERANCE
    ):
        last += 1
    return last


def cost_of(space: Space, knobs: Knobs) -> float:
    """What a choice costs the balanced goal, in halvings of the context.

    A doubling of the context is worth as much as a doubling of the speed.
    """
    halvings = log2(space.micro_batches[0] / knobs.n_ubatch)
    return (
        space.placements[knobs.placement].slowness
        + space.pair_costs[knobs.pair]
        + halvings * SMALL_BATCH_COST
        - (DRAFT_GAIN if knobs.with_draft else 0.0)
    )
