"""`kvchat tune`: the fastest settings on this machine, measured, and a preset with them."""

import time

import click

from app.cli.options import (
    Number,
    ctx_option,
    draft_option,
    json_option,
    opens_model,
    preset_option,
)
from app.config import load_settings
from app.console import Progress, note, print_json
from app.format import plural
from app.opening import ModelRequest
from app.render.tune import report, trial_text
from app.tables import console
from app.tuning import Tuning
from engine.experiment.tuner import Trial

EXIT_INTERRUPTED = 130
MINUTES = 3.0


@click.command(name="tune")
@click.argument("model", required=False)
@preset_option
@draft_option
@ctx_option
@opens_model
@click.option(
    "--minutes",
    default=MINUTES,
    show_default=True,
    type=Number(0.5, 600.0),
    help="Time limit in minutes, including loading.",
)
@click.option(
    "--write", "name", metavar="PRESET", help="Name of the preset to write. [tuned MODEL]"
)
@json_option
def command(asked: ModelRequest, *, minutes: float, name: str | None, as_json: bool) -> int:
    """Find the fastest settings of MODEL on this machine and save them as a preset.

    \b
    kvchat tune qwen2.5-1.5b               takes three minutes
    kvchat tune qwen2.5-1.5b --minutes 10  for slow models
    kvchat tune --preset long-context      tune the model and settings of a preset

    Other threads, flash attention settings and ubatch sizes are compared with the current settings
    in short alternating runs. A setting is chosen only if its gain exceeds the noise. Close other
    programs first. Ctrl+C stops and saves the results so far.
    """  # noqa: D301  click wants the backspace character itself
    until_s = time.monotonic() + 60 * minutes
    tuning = Tuning(asked, load_settings().settings, name)
    note(f"{tuning.model.name}: up to {minutes:g} {plural(minutes, 'minute')}")
    try:
        with Progress() as line:
            shown = _TuneProgress(line, until_s)
            tuning.run(60 * minutes, until_s, shown.doing, shown.report, shown.waiting)
    except KeyboardInterrupt:
        note("stopped before the current settings were measured: no preset was written")
        return EXIT_INTERRUPTED
    if as_json:
        print_json(tuning.as_values())
    else:
        screen = console()
        for part in report(tuning):
            screen.print(part)
    return EXIT_INTERRUPTED if tuning.was_stopped else 0


class _TuneProgress:
    """What is measured and the time left; results are printed above."""

    def __init__(self, line: Progress, until_s: float) -> None:
        self._line = line
        self._until_s = until_s
        self._doing = ""

    def doing(self, what: str) -> None:
        """Show what is measured now."""
        self._doing = what
        self.waiting()

    def report(self, trial: Trial) -> None:
        """Print a result."""
        self._line.clear()
        console(err=True).print(trial_text(trial), soft_wrap=True)

    def waiting(self) -> None:
        """Show the time left."""
        left_s = max(round(self._until_s - time.monotonic()), 0)
        self._line.show(f"{left_s // 60}:{left_s % 60:02d} left · {self._doing}")
