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
from app.console import EXIT_INTERRUPTED, Progress, note, print_json
from app.format import plural
from app.opening import ModelRequest
from app.render.tune import report
from app.tables import print_parts
from app.tuning import Tuning

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
    note(f"tuning {tuning.model.name} for up to {minutes:g} {plural(minutes, 'minute')}")
    try:
        with Progress() as progress:
            tuning.run(60 * minutes, until_s, progress)
    except KeyboardInterrupt:
        note("tuning was stopped before the current settings were measured: no preset was written")
        return EXIT_INTERRUPTED
    if as_json:
        print_json(tuning.as_values())
    else:
        print_parts(report(tuning))
    return EXIT_INTERRUPTED if tuning.was_stopped else 0
