"""The results of a tuning for a terminal."""

import shlex
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from app.format import rate
from app.tables import plain_table
from app.tuning import Tuning
from engine.experiment.tuner import Outcome, Trial

COLUMNS = ("setting", "tried", "speed", "interval", "blocks", "verdict")


def report(tuning: Tuning) -> Iterator[RenderableType]:
    """The table of all results, and what follows from them."""
    outcome = tuning.outcome
    assert outcome is not None
    rows = [_row(each) for each in outcome.compared]
    yield plain_table(COLUMNS, rows, numbers=("speed", "blocks"), folds=False)
    yield Text()
    for line in _conclusions(tuning, outcome):
        yield Text(line)
    if tuning.problem:
        yield Text(f"! {tuning.problem}", "yellow")


def _row(trial: Trial) -> tuple[str, ...]:
    gain = trial.gain
    if gain is None:
        return trial.setting, trial.label, "-", "-", "0", trial.verdict
    ends = f"{gain.low:.2f} to {gain.high:.2f}"
    return (
        trial.setting, trial.label, f"{gain.median:.3f}", ends, str(gain.n_blocks), trial.verdict
    )  # fmt: skip


def _conclusions(tuning: Tuning, outcome: Outcome) -> Iterator[str]:
    for each in outcome.compared:
        if each.verdict == "chosen":
            yield f"Chosen: {each.setting} {each.label}."
            if each.setting == "flash attention":
                yield "With flash attention changed, replies can differ where tokens nearly tie."
        elif each.verdict in ("failed", "faster"):
            yield f"Not chosen: {each.setting} {each.label} ({each.reason})."
    untried = (each.reason for each in outcome.compared if each.verdict == "not tried")
    for reason in dict.fromkeys(untried):
        yield f"Fixed thread counts were not tried: {reason}."
    if not outcome.changes:
        yield "No setting is clearly faster than the current one."
    yield _speeds(outcome)
    if outcome.is_busy:
        yield (
            f"Other programs used {outcome.n_others:.1f} cores and slowed the "
            "measurement, so `kvchat plan` does not show these speeds."
        )
    if tuning.preset_path is not None:
        yield (
            f"Preset written after {tuning.elapsed_s:.0f} s: {tuning.preset_path}. "
            f"To use it: kvchat --preset {shlex.quote(tuning.name)}"
        )
    undecided = [each.setting for each in outcome.compared if each.verdict == "undecided"]
    if undecided:
        yield f"No time was left to measure {', '.join(dict.fromkeys(undecided))}: raise --minutes."
    else:
        yield "All settings were measured."


def _speeds(outcome: Outcome) -> str:
    start, chosen = outcome.start_tps, outcome.chosen_tps
    deep = ""
    if "deep" in chosen:
        before = f" ({rate(start['deep'])})" if "deep" in start else ""
        deep = f", {rate(chosen['deep'])}{before} at depth {outcome.sizes.n_deep:,}"
    return (
        f"Tokens per second: decode {rate(chosen.get('near'))} (before: {rate(start.get('near'))})"
        f"{deep}, prefill {rate(chosen.get('prompt'))} (before: {rate(start.get('prompt'))})."
    )
