"""What each part of `auto` brings: simulated as it is, and with each part left out.

    ../.venv/bin/python controllers.py [--seeds 4] [--workers 2] [--page results/controllers.md]

The worlds are those of `tests/support/speculation_simulator.py`; the controller knows neither
machine nor text nor source. No clock is read, so the table is the same on every machine.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.speculation import acceptance, auto
from engine.speculation.controller import FixedController
from tests.support import speculation_simulator as sim

CURVES = (sim.TWO_CORES, sim.GPU, sim.KINK)
DRAFTS = (sim.SMALL_DRAFT, sim.LARGE_DRAFT)
N_TOKENS = 1000
N_FIRST = 20
"""First replies of a seed: short ones scatter."""
N_CHATS, N_TURNS = 4, 15
START, END = "<!-- what each part brings -->\n", "<!-- end of what each part brings -->\n"


# --- what is measured, each with one seed ---


def steady(seed: int) -> tuple[float, ...]:
    """Text of one kind, look-up: speed over that of the best fixed length, mean and least."""
    found = []
    for curve, share in product((sim.TWO_CORES, sim.GPU), (0.3, 0.6, 0.8, 0.9, 0.95)):
        played = sim.play_auto(sim.World(curve, sim.steady(share), seed=seed), N_TOKENS)
        speed = sim.expected_speed(played, curve, share, sim.LOOKUP)
        found.append(speed / sim.best_steady(curve, share, sim.LOOKUP))
    return mean(found), min(found)


def hopeless(seed: int) -> tuple[float, ...]:
    """Text that cannot be guessed, a noisy machine: the least speed over plain."""
    shaken = partial(sim.World, text=sim.steady(0.05), seed=seed, noise=0.1, stalls=0.01)
    worlds = (shaken(curve, source=source) for curve in CURVES for source in (sim.LOOKUP, *DRAFTS))
    return (min(sim.play_auto(world, 1000).speed for world in worlds),)


def _copying(curve: sim.Curve, every: int, seed: int, **changes: Any) -> sim.World:
    text = sim.switching(0.1, 0.92, every)
    return sim.World(curve, text, proposes=0.9, noise=0.05, seed=seed, **changes)


def copying(seed: int) -> tuple[float, ...]:
    """Prose and copied passages, look-up: speed over plain, and of the slowest 300 tokens."""
    worlds = (_copying(curve, every, seed) for curve in CURVES for every in (20, 60))
    played = [sim.play_auto(world, N_TOKENS) for world in worlds]
    return mean(each.speed for each in played), min(each.slowest_part(300) for each in played)


def draft_models(seed: int) -> tuple[float, ...]:
    """Draft models on text of one kind: speed over the best fixed length, mean and least."""
    found = [
        sim.play_auto(sim.World(curve, sim.steady(share), source, seed=seed), N_TOKENS).speed
        / sim.best_steady(curve, share, source)
        for curve, source, share in product(CURVES, DRAFTS, (0.6, 0.9))
    ]
    return mean(found), min(found)


def sure(seed: int) -> tuple[float, ...]:
    """Copied passages, a source with true confidence: speed over plain."""
    world = _copying(sim.TWO_CORES, 20, seed, has_confidence=True)
    return (sim.play_auto(world, N_TOKENS).speed,)


def shared_machine(seed: int) -> tuple[float, ...]:
    """Copied passages on a machine that others slow down for a while: speed over plain."""
    slowness = partial(_slowed, phases=(1.0, 1.6, 1.0, 2.4))
    worlds = (_copying(curve, 60, seed, slowness=slowness) for curve in CURVES)
    return (mean(sim.play_auto(world, N_TOKENS).speed for world in worlds),)


def _slowed(place: int, phases: tuple[float, ...]) -> float:
    return phases[place // 300 % len(phases)]


def long_prompt(seed: int) -> tuple[float, ...]:
    """A draft model with 1,000 tokens to read, that guesses worse where it leaves some out."""
    text = partial(sim.World, text=sim.steady(0.85), source=sim.SMALL_DRAFT, seed=seed)
    worlds = (text(curve, n_prompt=1000, in_part=0.8) for curve in (sim.TWO_CORES, sim.GPU))
    return (mean(sim.play_auto(world, N_TOKENS).speed for world in worlds),)


def first_reply(seed: int) -> tuple[float, ...]:
    """The first reply of a model, documents copied by turns: speed over the best fixed length.

    At 64, 128 and 512 tokens, in the mean of both curves on a machine that stalls now and then.
    """
    by_length = []
    for n_tokens in (64, 128, 512):
        found = []
        for curve, source in ((sim.TWO_CORES, sim.LOOKUP), (sim.Q4_K, sim.CHEAP_LOOKUP)):
            make = partial(_first_world, curve, source)
            lines = range(N_FIRST * seed, N_FIRST * (seed + 1))
            auto_speed = mean(_first_speed(make(line), n_tokens) for line in lines)
            fixed = (
                mean(sim.play(make(line), rule, n_tokens).speed for line in lines)
                for rule in map(FixedController, (1, 2, 3, 4, 6, 8))
            )
            found.append(auto_speed / max(1.0, *fixed))
        by_length.append(mean(found))
    return tuple(by_length)


def _first_world(curve: sim.Curve, source: sim.Source, seed: int) -> sim.World:
    text = sim.switching(0.3, 0.95, 24)
    make = partial(sim.World, curve, text, source, proposes=0.7, goes_on=0.8)
    return make(noise=0.1, stalls=0.01, seed=seed)


def _first_speed(world: sim.World, n_tokens: int) -> float:
    return sim.play_auto(world, n_tokens).speed


def busy_chat(seed: int) -> tuple[float, ...]:
    """Replies to one chat, guesses in runs of unlike lengths, one moment in fifty stalls."""
    text = sim.switching(0.5, 0.98, 60)
    make = partial(sim.World, sim.TWO_CORES, text, sim.CHEAP_LOOKUP, proposes=0.7, goes_on=0.97)
    found = []
    for chat in range(N_CHATS * seed, N_CHATS * (seed + 1)):
        controller = auto.AutoController()
        for turn in range(N_TURNS):
            world = make(noise=0.1, stalls=0.02, seed=N_TURNS * chat + turn)
            found.append(sim.play_auto(world, 128, controller).speed)
    return (mean(found),)


def turning(seed: int) -> tuple[float, ...]:
    """Text that is guessed well for 2,000 tokens and then badly: speed of the second part."""
    found = []
    for curve, source in product((sim.TWO_CORES, sim.GPU), (sim.LOOKUP, sim.SMALL_DRAFT)):
        world = sim.World(curve, lambda _, place: 0.8 if place < 2000 else 0.45, source, seed=seed)
        marks = sim.play_auto(world, 4000).marks
        begin = next(mark for mark in marks if mark[0] >= 2000)
        found.append((marks[-1][0] - begin[0]) / (marks[-1][1] - begin[1]))
    return (mean(found),)


def dear_to_ask(seed: int) -> tuple[float, ...]:
    """Hopeless text where asking for a look-up takes a twentieth of a plain step: over plain."""
    source = sim.Source(step=0.002, fixed=0.045)
    make = partial(sim.World, text=sim.steady(0.05), source=source, proposes=0.4, seed=seed)
    return (mean(sim.play_auto(make(curve), N_TOKENS).speed for curve in CURVES[:2]),)


MEASURES: dict[Callable[[int], tuple[float, ...]], tuple[str, ...]] = {
    steady: ("steady", "its least"),
    hopeless: ("hopeless",),
    copying: ("copying", "slowest 300"),
    draft_models: ("draft models", "their least"),
    sure: ("true confidence",),
    shared_machine: ("shared machine",),
    long_prompt: ("long prompt",),
    first_reply: ("first 64", "first 128", "first 512"),
    busy_chat: ("stalling",),
    turning: ("turning",),
    dear_to_ask: ("dear to ask",),
}


# --- what is left out ---


@contextmanager
def _replaced(*changes: tuple[object, str, object]) -> Iterator[None]:
    patches = [patch.object(owner, name, value) for owner, name, value in changes]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def _one_passage(source: str, _: float, confidence: float) -> tuple[acceptance.Cell, ...]:
    return CELLS(source, 0.0, confidence)


CELLS = acceptance._cells
VARIANTS: dict[str, list[tuple[object, str, object]]] = {
    "nothing": [],
    "confidence": [(acceptance, "CONFIDENCE_EDGES", ())],
    "copied passages have rates of their own": [(acceptance, "_cells", _one_passage)],
    "old outcomes are forgotten": [(acceptance, "FORGETTING", 1.0)],
    "sources that are off are asked for 1 % of the time": [(auto, "PROBE_LOSS", 0.0)],
    "plain steps to measure them": [(auto, "PLAIN_EVERY", (inf, inf))],
}


def figures(name: str, seeds: range) -> tuple[list[float], list[float]]:
    """Each figure of one variant as the mean over seeds, and how far that may be off."""
    with _replaced(*VARIANTS[name]):
        by_seed = [[one for measure in MEASURES for one in measure(seed)] for seed in seeds]
    columns = list(zip(*by_seed, strict=True))
    errors = [2 * stdev(each) / len(each) ** 0.5 for each in columns]
    return [mean(each) for each in columns], errors


def table(seeds: range, n_workers: int) -> Iterator[str]:
    """The lines of the table, as they are measured."""
    names = [name for names in MEASURES.values() for name in names]
    yield f"| left out | {' | '.join(names)} |\n|---|{'--:|' * len(names)}\n"
    scatter: list[float] = []
    with ProcessPoolExecutor(n_workers, mp_context=get_context("spawn")) as pool:
        rows = pool.map(partial(figures, seeds=seeds), VARIANTS)
        for name, (means, errors) in zip(VARIANTS, rows, strict=True):
            scatter = scatter or errors
            yield f"| {name} | {' | '.join(f'{value:.3f}' for value in means)} |\n"
    yield f"| *two standard errors* | {' | '.join(f'{value:.3f}' for value in scatter)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=1001)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    lines = []
    for line in table(seeds, options.workers):
        print(line, end="", flush=True)
        lines.append(line)
    if options.page is not None:
        before, _, rest = options.page.read_text(encoding="utf-8").partition(START)
        _, _, after = rest.partition(END)
        options.page.write_text(before + START + "".join(lines) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
