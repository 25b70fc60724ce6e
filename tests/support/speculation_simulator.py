"""A machine, a text and a predictor made of numbers, to play controllers against each other.

Time is counted in plain steps. The traps of such simulations: the controller must not know
the curve nor the shares, clocks stall, a draft model that rests has to catch up,
and comparing with one fixed length instead of the best in hindsight flatters.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from engine.configuration import MAX_DRAFT
from engine.speculation.auto import AutoController
from engine.speculation.controller import Controller, FixedController
from engine.speculation.costs import Costs
from engine.speculation.drafter import Examiner
from engine.speculation.predictors.base import DraftToken
from tests.support.rounds import a_round

STEP_S = 0.01
MAX_MISSED = 32

Curve = Sequence[tuple[int, float]]
TWO_CORES: Curve = ((1, 1.0), (2, 1.6), (3, 2.2), (4, 2.8), (8, 4.5), (17, 8.3))
"""A 135M model in Q4_1 on two processor cores, measured."""
Q4_K: Curve = (
    (1, 1.0), (2, 1.55), (3, 2.1), (4, 2.6), (6, 3.8), (8, 5.7), (12, 7.4), (17, 7.5),
)  # fmt: skip
"""A 1.5B model in Q4_K_M on two processor cores, measured."""
GPU: Curve = ((1, 1.0), (17, 1.24))
KINK: Curve = ((1, 1.0), (2, 2.66), (17, 3.6))
"""Kernels that are made for one row and slow for few."""


@dataclass(frozen=True, slots=True)
class Source:
    """What guessing costs, in plain steps."""

    step: float = 0.0005
    catch_up: float = 0.0
    fixed: float = 0.0
    """Of asking, whether anything is guessed or not."""


LOOKUP = Source(step=0.0015, fixed=0.015)
"""Suffixes of a 135M model's line on two processor cores, measured: asking costs, not guessing."""
CHEAP_LOOKUP = Source(step=0.0002, fixed=0.0015)
"""The same beside a model of ten times the size."""
SMALL_DRAFT = Source(step=0.08, catch_up=0.01)
LARGE_DRAFT = Source(step=0.30, catch_up=0.05)

Text = Callable[[random.Random, int], float]
"""The share of right guesses at a place of the line."""


def steady(share: float) -> Text:
    """Text of one kind."""
    return lambda _, __: share


def switching(low: float, high: float, every: int) -> Text:
    """Prose and copied passages by turns."""
    return lambda _, place: high if (place // every) % 2 else low


@dataclass(slots=True)
class World:
    """One line of text that is drafted for; whether a guess is right is settled by its place."""

    curve: Curve
    text: Text
    source: Source = LOOKUP
    noise: float = 0.03
    stalls: float = 0.002
    proposes: float = 1.0
    """Share of the rounds in which the source proposes anything."""
    goes_on: float = 1.0
    """Share of the guesses after which it has another one."""
    has_confidence: bool = False
    """Whether the confidence is the share of right guesses, or is constant."""
    slowness: Callable[[int], float] = lambda _: 1.0
    """Times as long as at first that everything takes at a place: others use the machine too."""
    switching: float = 0.0
    """Plain steps that a plain step directly after a batch takes longer."""
    n_prompt: int = 0
    """Tokens that a draft model has not read when the reply begins."""
    in_part: float = 1.0
    """What the share of right guesses is multiplied by where a draft model left some out."""
    seed: int = 0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def verify_steps(self, n_rows: int) -> float:
        """Give the time of a batch without noise."""
        for (left, low), (right, high) in pairwise(self.curve):
            if left <= n_rows <= right:
                return low + (high - low) * (n_rows - left) / (right - left)
        return self.curve[-1][1]

    def clock(self, steps: float, place: int) -> float:
        """What a clock shows for that work, in seconds."""
        stall = 5.0 if self.rng.random() < self.stalls else 0.0
        noise = self.rng.lognormvariate(0.0, self.noise)
        return STEP_S * self.slowness(place) * (steps * noise + stall)


@dataclass(slots=True)
class Played:
    """What a run came to: tokens and true work, without noise and stalls."""

    n_tokens: int = 0
    steps: float = 0.0
    n_drafted: int = 0
    lengths: list[int] = field(default_factory=list)
    marks: list[tuple[int, float]] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Tokens in the time of a plain step."""
        return self.n_tokens / self.steps

    def slowest_part(self, n_tokens: int) -> float:
        """Give the lowest speed over any part of about that many tokens."""
        worst, start = float("inf"), 0
        for end in range(len(self.marks)):
            while self.marks[end][0] - self.marks[start][0] > n_tokens:
                start += 1
            tokens = self.marks[end][0] - self.marks[start][0]
            if tokens > 0.9 * n_tokens:
                worst = min(worst, tokens / (self.marks[end][1] - self.marks[start][1]))
        return worst


@dataclass(slots=True)
class _Reading:
    """How far a draft model has read the text."""

    n_unread: int
    is_first: bool = True
    is_in_part: bool = False

    def catch_up(self) -> int:
        """The tokens that it reads before its first guess of a round."""
        n_read = self.n_unread if self.is_first else min(self.n_unread, MAX_MISSED)
        self.is_in_part |= n_read < self.n_unread
        self.is_first, self.n_unread = False, 0
        return n_read


def play(world: World, controller: Controller, n_tokens: int, costs: Costs | None = None) -> Played:
    """Let a controller draft for a line of that many tokens; rounds are timed for `costs`."""
    played, examiner, reading = Played(), Examiner(), _Reading(world.n_prompt)
    while played.n_tokens < n_tokens:
        place = played.n_tokens
        truth = _truth(world, place, world.in_part if reading.is_in_part else 1.0)
        guesses, was_asked = _pulled(world, controller, place)
        n_drafted = controller.n_to_verify(guesses) if guesses else 0
        examiner.follow("simulated", guesses, is_verified=n_drafted > 0)
        n_accepted = _leading(truth[:n_drafted])
        n_emitted = n_accepted + 1
        drafting = world.source.step * len(guesses) + world.source.fixed * was_asked
        if guesses:
            drafting += world.source.catch_up * reading.catch_up()
        reading.n_unread += n_emitted
        verifying = world.verify_steps(1 + n_drafted)
        is_after_batch = bool(played.lengths) and played.lengths[-1] > 0
        verifying += world.switching * (is_after_batch and not n_drafted)
        played.n_tokens += n_emitted
        played.steps += drafting + verifying
        played.n_drafted += n_drafted
        played.lengths.append(n_drafted)
        played.marks.append((played.n_tokens, played.steps))
        line = [int(right) for right in truth[:n_accepted]]
        line.append(int(truth[n_accepted]) if n_accepted == n_drafted else 0)
        verify_s = world.clock(verifying, place) if len(played.lengths) > 1 else None
        if costs is not None and verify_s is not None:
            costs.rows.add(1 + n_drafted, verify_s)
        controller.observe(
            a_round(
                n_verified=n_drafted,
                n_examined=min(n_accepted + 1, n_drafted),
                n_accepted=n_accepted,
                n_emitted=n_emitted,
                n_drafted=len(guesses),
                draft_s=world.clock(drafting, place) if was_asked else 0.0,
                verify_s=verify_s,
            ),
            examiner.examine(line),
        )
    return played


def play_auto(world: World, n_tokens: int, controller: AutoController | None = None) -> Played:
    """Let `auto` draft for a reply, with what it learned from earlier ones."""
    controller = AutoController() if controller is None else controller
    controller.start_reply()
    return play(world, controller, n_tokens, controller.costs)


def best_steady(curve: Curve, share: float, source: Source) -> float:
    """Give the speed of the best fixed length for text of one kind, 1 for none, in expectation."""
    world = World(curve, steady(share), source)
    speeds = [1.0]
    for length in range(1, MAX_DRAFT + 1):
        tokens = (1.0 - share ** (length + 1)) / (1.0 - share)
        catch_up = source.catch_up * tokens
        drafting = source.fixed + source.step * length + catch_up
        speeds.append(tokens / (world.verify_steps(1 + length) + drafting))
    return max(speeds)


def expected_speed(played: Played, curve: Curve, share: float, source: Source) -> float:
    """Give the speed that a run's lengths have on text of one kind, luck taken out."""
    world, tokens, steps = World(curve, steady(share), source), 0.0, 0.0
    for length in played.lengths:
        emitted = (1.0 - share ** (length + 1)) / (1.0 - share)
        tokens += emitted
        steps += world.verify_steps(1 + length) + source.fixed + source.step * max(length, 4)
        steps += source.catch_up * emitted
    return tokens / steps


def best_fixed(make: Callable[[], World], n_tokens: int) -> float:
    """Give the speed of the best fixed length in hindsight, 1 for none."""
    return max(
        1.0,
        *(
            play(make(), FixedController(length), n_tokens).speed
            for length in (1, 2, 3, 4, 6, 8, 12, MAX_DRAFT)
        ),
    )


def _truth(world: World, place: int, known: float) -> list[bool]:
    return [
        world.rng.random() < known * world.text(world.rng, place + index)
        for index in range(MAX_DRAFT + 1)
    ]


def _pulled(world: World, controller: Controller, place: int) -> tuple[list[DraftToken], bool]:
    """Give the guesses of a round, and whether any were requested for."""
    guesses: list[DraftToken] = []
    is_silent = world.rng.random() >= world.proposes
    was_asked = controller.wants("simulated")
    while was_asked and not is_silent and len(guesses) < MAX_DRAFT:
        share = world.text(world.rng, place + len(guesses)) if world.has_confidence else 0.8
        guesses.append(DraftToken(1, share))
        if not controller.wants_another(guesses):
            break
        if world.goes_on < 1.0 and world.rng.random() >= world.goes_on:
            break
    return guesses, was_asked


def _leading(truth: list[bool]) -> int:
    return next((index for index, right in enumerate(truth) if not right), len(truth))
