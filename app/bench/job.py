"""A whole benchmark: prompt after prompt, kept after each, through failures and interruptions."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from app.bench.asking import Asker, EngineStoppedError
from app.bench.measure import Plan, measure_prompt
from app.bench.prompt_sets import Prompt
from app.bench.records import PromptRecord, Results
from app.bench.schedule import n_runs
from engine.errors import WorkerError

MOST_CRASHES = 3
"""Prompts in a row on which the engine may die."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A prompt at a temperature; `index` is its number in its set."""

    prompt: Prompt
    temperature: float
    index: int

    @property
    def key(self) -> tuple[str, str, float]:
        """What its record is known by."""
        return self.prompt.set_name, self.prompt.name, self.temperature


class Progress(Protocol):
    """Is told how far a benchmark is."""

    def run_done(self, unit: Unit, policy: str) -> None:
        """A reply was made."""
        ...

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        """All runs of a prompt are in; `n_done` replies are done or left out by now."""
        ...


def make_units(sets: Sequence[Sequence[Prompt]], temperatures: Sequence[float]) -> tuple[Unit, ...]:
    """Give every prompt at every temperature, set after set, as a chat stays with its subject."""
    return tuple(
        Unit(prompt, temperature, index)
        for temperature in dict.fromkeys(temperatures)
        for prompts in sets
        for index, prompt in enumerate(prompts)
    )


def still_to_do(units: Sequence[Unit], results: Results) -> tuple[Unit, ...]:
    """Give the prompts without a record."""
    done = {record.key for record in results.prompts}
    return tuple(unit for unit in units if unit.key not in done)


def without_failures(results: Results) -> Results:
    """Give results of which every prompt has runs, so that the others are tried again."""
    kept = tuple(record for record in results.prompts if record.failure is None)
    return replace(results, prompts=kept)


def run_units(
    asker: Asker,
    units: Sequence[Unit],
    plan: Plan,
    results: Results,
    *,
    progress: Progress,
    keep: Callable[[Results], None],
) -> Results:
    """Run the prompts and add their records to the results.

    Args:
        asker: The engine.
        units: The prompts to run.
        plan: What is run for each.
        results: What there is already.
        progress: Is told of every run.
        keep: Called with the results behind every prompt.

    Raises:
        WorkerError: the engine cannot be started again, or died on `MOST_CRASHES` prompts in a
            row; what was measured has been kept.
    """
    n_crashes = 0
    runs_each = n_runs(len(plan.policies), plan.n_pairs)
    for number, unit in enumerate(units, 1):
        start_s = time.perf_counter()
        record, is_crash = _record(asker, unit, plan, progress)
        results = replace(
            results,
            prompts=(*results.prompts, record),
            elapsed_s=results.elapsed_s + time.perf_counter() - start_s,
        )
        keep(results)
        progress.prompt_done(record, number * runs_each)
        n_crashes = n_crashes + 1 if is_crash else 0
        if n_crashes >= MOST_CRASHES:
            raise WorkerError(
                f"the engine died on {n_crashes} prompts in a row ({record.failure}): what was "
                "measured before is kept; try fewer policies, or look with `kvchat doctor`"
            )
    return results


def _record(asker: Asker, unit: Unit, plan: Plan, progress: Progress) -> tuple[PromptRecord, bool]:
    """Give the record of a prompt, and whether the engine died over it."""
    try:
        record = measure_prompt(
            asker,
            unit.prompt,
            plan,
            temperature=unit.temperature,
            index=unit.index,
            tell=lambda policy: progress.run_done(unit, policy),
        )
    except EngineStoppedError as error:
        return PromptRecord(*unit.key, failure=str(error)), True
    return record, False
