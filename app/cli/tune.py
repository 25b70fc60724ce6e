"""`kvchat tune`: what this machine likes, measured in pairs, and the preset that has it."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from app.cli.console import note, print_json, tell, tell_over
from app.cli.options import Number, ctx_option, draft_option, json_option, preset_option

if TYPE_CHECKING:
    from app.tuning import Tuned, TuneStep, Tuning
    from engine.tuning.gain import PairedGain
    from engine.tuning.outcome import TrialResult

EXIT_INTERRUPTED = 130
MINUTES = 3.0
STYLES = {"taken": "green", "quicker": "green", "failed": "red", "no time": "yellow"}
THREADS_NOTE = "Not measured: priority and polling of threads, which llama-cpp-python does not set."


@click.command(name="tune")
@click.argument("model", required=False)
@preset_option
@draft_option
@ctx_option
@click.option(
    "--minutes",
    default=MINUTES,
    show_default=True,
    type=Number(0.5, 600.0),
    help="Time for everything, earlier runs included.",
)
@click.option("--again", is_flag=True, help="Forget what earlier runs measured.")
@click.option("--write", "name", metavar="PRESET", help="Name of the preset. [tuned MODEL]")
@json_option
def command(
    model: str | None,
    *,
    preset: str | None,
    draft: str | None,
    n_ctx: int | None,
    minutes: float,
    again: bool,
    name: str | None,
    as_json: bool,
) -> int:
    """Measure which settings run MODEL quickest on this machine, and write them as a preset.

    \b
    kvchat tune qwen2.5-1.5b               three minutes
    kvchat tune qwen2.5-1.5b --minutes 10  go on with what was left out
    kvchat tune --preset long-context      the model and settings of a preset

    Threads, flash attention, micro-batch, repacked and mapped weights, layers on the GPU and who
    drafts are compared with what kvchat does now, in runs side by side; a setting is taken where
    it is quicker beyond the noise. Close what else uses the machine. Ctrl+C keeps what is done: the
    same command goes on there.
    """  # noqa: D301  click wants the backspace character itself
    from app.config import load_settings
    from app.opening import ModelRequest
    from app.tuning import TuneRequest, Tuning

    request = TuneRequest(ModelRequest(model, draft, preset, n_ctx), minutes, again, name)
    tuning = Tuning(request, load_settings().settings)
    if not _measured(tuning, minutes):
        return EXIT_INTERRUPTED
    tuned = tuning.result
    assert tuned is not None
    if as_json:
        from app.tuning import as_json as values

        print_json(values(tuned))
    else:
        _print(tuned)
    return 0


def _measured(tuning: "Tuning", minutes: float) -> bool:
    """Whether a run came to its end; how far it is goes to standard error."""
    goes_on = f", after {tuning.spent_s:.0f} s of earlier runs" if tuning.spent_s else ""
    tell(f"{tuning.model_name}: up to {minutes:g} minutes{goes_on}")
    _over("loading …")
    try:
        for step in tuning.run():
            _tell_step(step, minutes * 60)
    except KeyboardInterrupt:
        _clear()
        note("stopped; what was measured is kept, and the same command goes on there")
        return False
    _clear()
    return True


def _tell_step(step: "TuneStep", budget_s: float) -> None:
    from app.bench.short import DraftingProgress
    from engine.tuning.outcome import TrialProgress

    match step:
        case TrialProgress(setting=what, label=label, n_blocks=n, gain=gain, spent_s=spent_s):
            so_far = f" · {_ratio(gain)}" if gain else ""
            _over(f"{spent_s:.0f} of {budget_s:.0f} s · {what}, {label} · block {n}{so_far}")
        case DraftingProgress(n_prompts=n):
            _over(f"drafts · prompt {n}")
        case _:
            _clear()
            tell(*_line(step))


def _over(text: str) -> None:
    if sys.stderr.isatty():
        tell_over(text[: shutil.get_terminal_size().columns - 1])


def _clear() -> None:
    if sys.stderr.isatty():
        tell_over()


def _line(each: "TrialResult") -> Iterator[str | tuple[str, str]]:
    yield f"{each.setting}, {each.label}: "
    yield each.verdict, STYLES.get(each.verdict, "")
    yield f" {_ratio(each.gain)}" if each.gain else ""
    yield f" ({each.reason})" if each.reason else ""


def _print(tuned: "Tuned") -> None:
    from rich.text import Text

    from app.console import console, plain_table

    outcome = tuned.outcome
    titles = ("setting", "tried", "speed", "95 %", "blocks", "verdict")
    rows = [_row(each) for each in outcome.compared]
    screen = console()
    screen.print(plain_table(titles, rows, numbers=("speed", "blocks"), folds=False))
    screen.print()
    for line in _conclusions(tuned):
        screen.print(Text(line))
    for problem in tuned.problems:
        screen.print(Text(f"! {problem}", "yellow"))


def _row(each: "TrialResult") -> tuple[str, ...]:
    gain = each.gain
    if gain is None:
        return each.setting, each.label, "-", "-", "0", each.verdict
    ends = f"{gain.low:.2f} to {gain.high:.2f}"
    return (
        each.setting, each.label, f"{gain.median:.3f}", ends, str(gain.n_blocks), each.verdict
    )  # fmt: skip


def _conclusions(tuned: "Tuned") -> Iterator[str]:
    from app.format import rate

    outcome, drafting = tuned.outcome, tuned.drafting
    noise = outcome.noise
    yield f"Two equal engines differ by up to {100 * noise.noise:.1f} %: gains below that are none."
    for each in outcome.compared:
        if each.verdict == "taken":
            parts = ", ".join(f"{name} {gain.median:.2f}" for name, gain in each.parts.items())
            cost = f" Its cost: {each.cost}." if each.cost else ""
            yield f"Taken: {each.setting} {each.label} ({parts}).{cost}"
        elif each.verdict in ("failed", "quicker") and each.reason:
            yield f"Not taken: {each.setting} {each.label}: {each.reason}."
    if outcome.total is None:
        yield "Nothing that was tried is clearly quicker than the settings of now."
    else:
        yield f"All together: {_ratio(outcome.total)} of the settings of now."
    if drafting is not None:
        yield (
            f"Drafts, on {drafting.n_prompts} prompts: {drafting.advice.name} - "
            f"{drafting.advice.reason}."
        )
    start, chosen = outcome.start_tps, outcome.chosen_tps
    deep = f"{outcome.sizes.n_deep:,}"
    yield (
        f"Tokens a second: {rate(chosen.get('near'))} written (before: {rate(start.get('near'))}), "
        f"{rate(chosen.get('deep'))} behind {deep} ({rate(start.get('deep'))}), "
        f"{rate(chosen.get('prompt'))} read ({rate(start.get('prompt'))})."
    )
    yield THREADS_NOTE
    if tuned.preset is not None:
        yield f"Written: {tuned.preset_path}. Use it: kvchat --preset {shlex.quote(tuned.preset)}"
    if tuned.is_complete:
        yield "Everything is measured" + (
            " since an earlier run: --again measures anew." if tuned.was_done else "."
        )
    else:
        yield "The time was too short for the rest: more --minutes go on there."


def _ratio(gain: "PairedGain | None") -> str:
    if gain is None:
        return "-"
    return f"{gain.median:.3f} ({gain.low:.2f} to {gain.high:.2f})"
