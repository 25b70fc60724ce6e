"""`kvchat tune`: what this machine likes, measured in pairs, and the preset that has it."""

import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from app.cli.console import Part, note, print_json, redraws, tell, tell_over
from app.cli.options import Number, ctx_option, draft_option, json_option, preset_option

if TYPE_CHECKING:
    from app.tuning import Tuned
    from engine.experiment.gain import PairedGain
    from engine.experiment.tuner import Outcome, TrialResult, TuningProgress

EXIT_INTERRUPTED = 130
MINUTES = 3.0
STYLES = {"taken": "green", "faster": "green", "failed": "red", "no time": "yellow"}
VERDICTS = {"taken": "chosen", "not faster": "no clear gain", "no time": "undecided: out of time"}
LINE_EVERY_S = 5.0
"""How often a line says where it is where there is no terminal to write over."""


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
    help="Total time, loading included.",
)
@click.option(
    "--write", "name", metavar="PRESET", help="Name of the preset to write. [tuned MODEL]"
)
@json_option
def command(
    model: str | None,
    *,
    preset: str | None,
    draft: str | None,
    n_ctx: int | None,
    minutes: float,
    name: str | None,
    as_json: bool,
) -> int:
    """Find the fastest settings of MODEL on this machine and save them as a preset.

    \b
    kvchat tune qwen2.5-1.5b               three minutes
    kvchat tune qwen2.5-1.5b --minutes 10  for slow models
    kvchat tune --preset long-context      the model and settings of a preset

    Threads, flash attention and ubatch are compared with the current settings in short alternating
    runs. A setting is chosen if it is faster beyond the noise. Close other programs first. Ctrl+C
    stops and saves the results so far.
    """  # noqa: D301  click wants the backspace character itself
    began_s = time.monotonic()
    import app.console  # noqa: F401  what prints in the end is read before the time is over
    from app.config import load_settings
    from app.format import plural
    from app.opening import ModelRequest
    from app.tuning import TuneRequest, Tuning

    until_s = began_s + 60 * minutes
    request = TuneRequest(ModelRequest(model, draft, preset, n_ctx), minutes, until_s, name)
    tuning = Tuning(request, load_settings().settings)
    tell(f"{tuning.model_name}: up to {minutes:g} {plural(minutes, 'minute')}")
    shown = _Shown(until_s)
    try:
        tuned = tuning.run(shown.tell, shown.waiting)
    except KeyboardInterrupt:
        shown.clear()
        note("stopped before the current settings were measured: no preset written")
        return EXIT_INTERRUPTED
    finally:
        shown.clear()
    if as_json:
        from app.tuning import as_json as values

        print_json(values(tuned))
    else:
        _print(tuned)
    return EXIT_INTERRUPTED if tuned.was_stopped else 0


class _Shown:
    """Where a run is and how long it may still take, on standard error.

    A terminal has it in one line that is written over, anything else a line every few seconds.
    """

    def __init__(self, until_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._until_s = until_s
        self._clock = clock
        self._doing = ""
        self._redraws = redraws()
        self._line_at_s = clock()

    def tell(self, step: "TuningProgress | TrialResult") -> None:
        """Show what is measured now, or print a result."""
        from engine.experiment.tuner import TuningProgress

        if isinstance(step, TuningProgress):
            self._doing = _doing(step)
            self.waiting()
        else:
            self.clear()
            tell(*_line(step))

    def waiting(self) -> None:
        """Say how much time is left."""
        left_s = max(round(self._until_s - self._clock()), 0)
        text = f"{left_s // 60}:{left_s % 60:02d} left · {self._doing}"
        if self._redraws:
            tell_over(text[: shutil.get_terminal_size().columns - 1])
        elif self._clock() >= self._line_at_s:
            self._line_at_s = self._clock() + LINE_EVERY_S
            tell(text)

    def clear(self) -> None:
        """Take the line away."""
        if self._redraws:
            tell_over()


def _doing(step: "TuningProgress") -> str:
    parts = [", ".join(filter(None, (step.setting, step.label)))]
    if step.label:
        parts.append(f"block {step.n_blocks + 1}")
    if step.gain is not None:
        parts.append(f"{step.gain.median:.2f}x so far")
    return " · ".join(parts)


def _line(each: "TrialResult") -> Iterator[Part]:
    yield f"{each.setting}, {each.label}: "
    yield VERDICTS.get(each.verdict, each.verdict), STYLES.get(each.verdict, "")
    yield f": {_ratio(each.gain)}" if each.gain else ""
    yield f" ({each.reason})" if each.reason else ""


def _print(tuned: "Tuned") -> None:
    from rich.text import Text

    from app.console import console, plain_table

    titles = ("setting", "tried", "speed", "99 %", "blocks", "verdict")
    rows = [_row(each) for each in tuned.outcome.compared]
    screen = console()
    screen.print(plain_table(titles, rows, numbers=("speed", "blocks"), folds=False))
    screen.print()
    for line in _conclusions(tuned):
        screen.print(Text(line))
    for problem in tuned.problems:
        screen.print(Text(f"! {problem}", "yellow"))


def _row(each: "TrialResult") -> tuple[str, ...]:
    gain, verdict = each.gain, VERDICTS.get(each.verdict, each.verdict)
    if gain is None:
        return each.setting, each.label, "-", "-", "0", verdict
    ends = f"{gain.low:.2f} to {gain.high:.2f}"
    return (
        each.setting, each.label, f"{gain.median:.3f}", ends, str(gain.n_blocks), verdict
    )  # fmt: skip


def _conclusions(tuned: "Tuned") -> Iterator[str]:
    outcome = tuned.outcome
    for each in outcome.compared:
        if each.verdict == "taken":
            cost = f" Cost: {each.cost}." if each.cost else ""
            yield f"Chosen: {each.setting} {each.label}.{cost}"
        elif each.verdict in ("failed", "faster"):
            yield f"Not chosen: {each.setting} {each.label}: {each.reason}."
    for reason in dict.fromkeys(
        each.reason for each in outcome.compared if each.verdict == "not tried"
    ):
        yield f"Threads were not tried: {reason}."
    if not outcome.changes:
        yield "Nothing is clearly faster than the current settings."
    yield _speeds(outcome)
    if outcome.is_busy:
        yield (
            f"Other programs used {outcome.n_others:.1f} cores, which slowed the "
            "measurement: `kvchat plan` will not show these speeds."
        )
    if tuned.preset is not None:
        yield (
            f"Written after {tuned.spent_s:.0f} s: {tuned.preset_path}. "
            f"Open it: kvchat --preset {shlex.quote(tuned.preset)}"
        )
    if outcome.is_complete:
        yield "Everything was measured."
    else:
        names = dict.fromkeys(
            each.setting for each in outcome.compared if each.verdict == "no time"
        )
        yield f"No time was left for {', '.join(names)}: raise --minutes."


def _speeds(outcome: "Outcome") -> str:
    from app.format import rate

    start, chosen = outcome.start_tps, outcome.chosen_tps
    deep = ""
    if "deep" in chosen:
        before = f" ({rate(start['deep'])})" if "deep" in start else ""
        deep = f", {rate(chosen['deep'])}{before} at depth {outcome.sizes.n_deep:,}"
    return (
        f"Tokens per second: decode {rate(chosen.get('near'))} (before: {rate(start.get('near'))})"
        f"{deep}, prefill {rate(chosen.get('prompt'))} ({rate(start.get('prompt'))})."
    )


def _ratio(gain: "PairedGain") -> str:
    return f"{gain.median:.2f}x ({gain.low:.2f}x to {gain.high:.2f}x)"
