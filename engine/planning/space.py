"""The configurations of a search, what each costs, and which of two is better for a goal."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log2

from engine.configuration import Configuration, KVTypes, PredictorName
from engine.errors import PresetError
from engine.memory.estimate import Estimate, Estimator, with_n_ctx
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD, is_quantized, with_types
from engine.planning.goals import Goal
from engine.planning.placements import REFUSED, OffloadLevel, Room, first_fitting, laid, room_of
from engine.policy.pairs import guessed_cost


@dataclass(frozen=True, slots=True)
class Knobs:
    """One choice of everything but the context; `placement` and `pair` count from the best."""

    placement: int
    pair: int
    n_ubatch: int
    with_draft: bool


Point = tuple[Knobs, int]
"""A choice and its context in steps of 256 tokens."""

Rank = tuple[float, ...]


@dataclass(slots=True)
class Space:
    """All choices of a search, and what each costs.

    Every cost is computed once. What llama.cpp refuses fits nowhere. Contexts count in steps of
    256 tokens, from `least` to `most`.
    """

    base: Configuration
    """What every choice keeps."""
    cost: Estimator
    placements: tuple[OffloadLevel, ...]
    pairs: tuple[KVTypes, ...]
    micro_batches: tuple[int, ...]
    drafts: tuple[bool, ...]
    margin_bytes: int
    n_ctx_range: tuple[int, int]
    """The least and the most tokens, of all slots together."""
    pair_costs: tuple[float, ...] = ()
    """What each pair costs the balanced goal; guessed where it is left out."""
    _rooms: dict[Point, Room] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.pair_costs = self.pair_costs or tuple(map(guessed_cost, self.pairs))

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs of the machine; none where llama.cpp refuses the smallest choice."""
        try:
            found = self.estimate(self.choices()[-1], self.least)
        except PresetError:
            return ()
        return tuple(each.device for each in found.devices if each.device.kind == "gpu")

    @property
    def least(self) -> int:
        return -(-self.n_ctx_range[0] // PAD)

    @property
    def most(self) -> int:
        return max(self.least, -(-self.n_ctx_range[1] // PAD))

    @property
    def last(self) -> int:
        """The slowest placement."""
        return len(self.placements) - 1

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
        base = self.base
        chosen = replace(
            laid(with_pair(base, self.pairs[knobs.pair]), self.placements[knobs.placement]),
            n_batch=max(base.n_batch, knobs.n_ubatch),
            n_ubatch=knobs.n_ubatch,
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
        return min(steps * PAD, self.n_ctx_range[1])

    def estimate(self, knobs: Knobs, steps: int) -> Estimate:
        """What a choice costs.

        Raises:
            PresetError: llama.cpp would refuse it.
        """
        return self.cost(self.configuration(knobs, steps))

    def room(self, knobs: Knobs, steps: int) -> Room:
        """What a choice leaves beyond the margin."""
        key = (knobs, steps)
        if key not in self._rooms:
            try:
                self._rooms[key] = room_of(self.estimate(knobs, steps), self.margin_bytes)
            except PresetError:
                self._rooms[key] = REFUSED
        return self._rooms[key]

    def first_fitting(self, knobs: Knobs, steps: int, places: tuple[int, int]) -> int | None:
        """The fastest of the placements at which a context fits, None where none does."""

        def room(index: int) -> Room:
            return self.room(replace(knobs, placement=index), steps)

        return first_fitting(room, *places)

    def largest(self, knobs: Knobs, least: int = 0) -> int | None:
        """The largest context of a choice in steps, None where the least does not fit."""
        low = least or self.least
        return last_within(lambda steps: self.room(knobs, steps).least, low, self.most)


def last_within(left: Callable[[int], int], low: int, high: int) -> int | None:
    """The last number at which nothing is short, None where the first is short already.

    What is left falls as the number grows, nearly evenly: so the next number to try is where a
    straight line ends, and the middle where that hardly helped.
    """
    if left(low) < 0:
        return None
    if left(high) >= 0:
        return high

    def narrow(tried: int) -> tuple[int, int]:
        middle = min(max(tried, low + 1), high - 1)
        return (middle, high) if left(middle) >= 0 else (low, middle)

    while high - low > 1:
        span = high - low
        low, high = narrow(low + span * left(low) // (left(low) - left(high)))
        if 2 * (high - low) > span:
            low, high = narrow((low + high) // 2)
    return low


def with_pair(configuration: Configuration, pair: KVTypes) -> Configuration:
    """The configuration with a pair of cache types; packed values take flash attention along."""
    flash = configuration.flash_attention
    needs_flash = flash == "auto" and is_quantized(pair.v)
    typed = with_types(configuration, pair)
    return replace(typed, flash_attention="on") if needs_flash else typed


DRAFT_GAIN = 0.5
"""What a draft model gains the balanced goal, in doublings: 1.4 times the speed."""

SMALL_BATCH_COST = 0.25
"""What halving the ubatch costs the balanced goal: slower prompts, the same replies."""

SPEED_TOLERANCE = 0.5
"""Halvings of the speed that do not count: a layer more or less in RAM is no reason to give up most
of the context, or a finer cache."""


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
    while last < space.last and space.placements[last + 1].slowness <= fastest + SPEED_TOLERANCE:
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
