"""Measures the planner's screen: from a key to the painted plan, the table and the what-ifs.

python benchmarks/planner.py MODEL [MODEL ...] [--turns N] [--size 120x36]

A model is a file or a name of the catalogue. The real screen runs without a terminal, for one GPU
of 12 GiB. `paint` is the time from the key until the last line of the panel with the numbers is
painted; `table` until the table has the same plan, mostly for the same frame; `what-ifs` until all
of them are there, with no key pressed in between: they wait for 50 ms of rest. Turns that llama.cpp
refuses are left out.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from engine.planning.machine import PlannedMachine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from textual.pilot import Pilot
from textual.strip import Strip

from app.screens.planner import PlannerScreen
from app.widgets.ink import LinesView
from app.widgets.planner import PlanTable
from engine.memory.units import GIB
from tests.app.screens.plan_host import Host, SilentDryRun

KEYS = ("right", "right", "down", "right", "down", "right", "up", "left", "up", "left", "left")
DEADLINE_S = 5.0
WITHOUT_TURN_S = 0.2


async def measure(name: str, n_turns: int, size: tuple[int, int]) -> dict[str, list[float]]:
    """Turn knobs of one model, and give the times in milliseconds."""
    times: dict[str, list[float]] = {"paint": [], "table": [], "what-ifs": []}
    with TemporaryDirectory() as folder:
        screen = PlannerScreen(Path(name), None, dry_run=SilentDryRun(), presets_dir=Path(folder))
        async with Host(screen).run_test(size=size) as pilot:
            await _until(lambda: screen.plan is not None)
            assert screen.setup is not None
            now = replace(screen.setup.configuration, n_ctx=4096)
            screen.change(
                replace(screen.setup, configuration=now, machine=PlannedMachine((12 * GIB,)))
            )
            for turn in range(n_turns):
                await _turn(screen, pilot, KEYS[turn % len(KEYS)], times)
    return times


async def _turn(
    screen: PlannerScreen, pilot: Pilot[None], key: str, times: dict[str, list[float]]
) -> None:
    await _until(lambda: screen.has_what_ifs or screen.plan is None)
    before, report = screen.setup, screen.query_one("#plan-report", LinesView)
    table = screen.query_one(PlanTable)
    painted = 0.0

    paint = report.content_strip

    def note_paint(y: int, width: int) -> Strip:
        nonlocal painted
        strip = paint(y, width)
        is_last = y == report.content_size.height - 1
        if screen.setup is not before and is_last and not painted:
            painted = time.perf_counter()
        return strip

    report.content_strip = note_paint  # type: ignore[method-assign]
    started = time.perf_counter()
    pilot.app.simulate_key(key)
    await asyncio.sleep(0)
    deadline = time.perf_counter() + WITHOUT_TURN_S
    while screen.setup is before and time.perf_counter() < deadline:
        await asyncio.sleep(0.001)
    # The knob was at its end, the key chose another one, or llama.cpp refuses the value.
    if screen.setup is before or screen.plan is None:
        report.content_strip = paint  # type: ignore[method-assign]
        return
    await _until(lambda: table.setup is screen.setup)
    times["table"].append(1000 * (time.perf_counter() - started))
    await _until(lambda: painted)
    times["paint"].append(1000 * (painted - started))
    await _until(lambda: screen.has_what_ifs)
    times["what-ifs"].append(1000 * (time.perf_counter() - started))
    report.content_strip = paint  # type: ignore[method-assign]


async def _until(predicate: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not predicate():
        assert time.monotonic() < deadline, "the screen did not get there"
        await asyncio.sleep(0.001)


def p95(values: list[float]) -> float:
    """The value under which 95 of a hundred lie."""
    return sorted(values)[min(int(0.95 * len(values)), len(values) - 1)]


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--size", default="120x36")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    print(f"{'ms, median / p95':<34}{'paint':>14}{'table':>14}{'what-ifs':>14}{'turns':>7}")
    for name in options.models:
        times = asyncio.run(measure(name, options.turns, (width, height)))
        cells = "".join(f"{median(v):>7.1f} /{p95(v):>5.1f}" for v in times.values())
        print(f"{Path(name).stem:<34}{cells}{len(times['paint']):>7}")


if __name__ == "__main__":
    main()
