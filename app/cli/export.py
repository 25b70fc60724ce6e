"""`kvchat export`: a preset as the command line of llama-server."""

import json

import click

from app.cli.plan import Bytes


@click.command(name="export")
@click.argument("preset")
@click.argument("model", required=False)
@click.option(
    "--vram",
    type=Bytes(),
    multiple=True,
    metavar="SIZE",
    help="Plan for a GPU of this size instead of those found; again for more GPUs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    preset: str, model: str | None, vram: tuple[int, ...], *, as_json: bool
) -> None:  # fmt: skip
    """Give PRESET with MODEL as the arguments of llama-server.

    Rules such as `auto` and `max` become numbers for this machine, or for the GPUs of --vram. MODEL
    may be left out where the preset names one. What llama-server does otherwise than kvchat is said
    on standard error.

    \b
    kvchat export balanced qwen2.5-7b
    kvchat export "long context" qwen2.5-7b --vram 24GiB > serve.sh
    """  # noqa: D301  click wants the backspace character itself
    from app.planning.asked import Asked, setup_of
    from app.planning.plan import Planner, warnings_of
    from app.render.lines import plain
    from app.render.plan import verdict_line
    from engine.presets.export.llama_server import PROGRAM, remarks

    planner = Planner()
    asked = Asked(model=model, preset=preset, target="llama-server", vram_bytes=vram)
    plan = planner.plan(setup_of(asked, planner))
    notes = [*remarks(plan.setup.configuration, plan.model), *warnings_of(plan)]
    if not plan.fits:
        notes.insert(0, plain(verdict_line(plan)))
    if as_json:
        found = {
            "program": PROGRAM,
            "args": plan.arguments,
            "command": plan.command_line,
            "remarks": notes,
        }
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    click.echo(plan.command_line)
    for note in notes:
        click.echo(f"# {note}", err=True)
