"""`kvchat plan`: what a model costs in memory, and which context fits."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.console import print_json
from app.cli.plan_options import knob_options, machine_options, setup_of_options

if TYPE_CHECKING:
    from engine.memory.terms import Target


@click.command(name="plan")
@click.argument("model")
@machine_options
@knob_options
@click.option(
    "--target",
    type=click.Choice(["kvchat", "llama-server"]),
    default="kvchat",
    show_default=True,
    help="The program that is to run it.",
)
@click.option(
    "--dry-run", is_flag=True, help="Ask llama.cpp what it would allocate; loads no weights."
)
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with what llama-server's log tells (-lv 4 or --log-jsonl).",
)
@click.option(
    "--calibrate", is_flag=True, help="With --log: plan with what the log says about the GPU."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    *,
    target: "Target",
    dry_run: bool,
    log: Path | None,
    calibrate: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Say what MODEL costs in memory, device by device, and the largest context that fits.

    MODEL is a path, a name from `kvchat models`, a name of the catalogue with a quantisation behind
    a colon, a URL, or hf:owner/repository/file.gguf. Nothing is loaded, and of a remote file only
    the header is read. Exact numbers are marked `=`, llama.cpp's dry run `*`, estimates `~`.
    The exit code is 0 also where it does not fit.

    \b
    kvchat plan qwen2.5-7b --vram 8GiB --ctx 32k
    kvchat plan qwen3-8b:Q4_K_M --card "RTX 3060"
    kvchat plan hf:owner/repository/file.gguf
    kvchat plan qwen3-30b-a3b --vram 12GiB --cpu-moe
    kvchat plan qwen2.5-7b --target llama-server --slots 4 --type-k q8_0
    """  # noqa: D301  click wants the backspace character itself
    from app.planning import user_planner
    from engine.planning.measured import can_measure, measured_plan

    planner = user_planner()
    setup = setup_of_options(model, target, planner, options)
    plan = planner.plan(setup)
    if dry_run:
        if not can_measure(plan):
            raise click.UsageError(
                "--dry-run measures a file of this machine on its own devices: name one, and leave "
                "out --vram, --card, --ram and a preset with vram_gib"
            )
        plan = measured_plan(plan)
    if calibrate:
        from app.cli.compare_log import learn

        if log is None:
            raise click.UsageError("--calibrate learns from a log: name it with --log")
        learn(plan, log)
    if as_json:
        from engine.planning.as_json import plan_json

        found = plan_json(plan, planner)
        if log is not None:
            from app.cli.compare_log import comparison_json

            found["log"] = comparison_json(plan, log)
        print_json(found)
        return
    if log is not None:
        from app.cli.compare_log import print_comparison

        print_comparison(plan, log)
        return
    from app.cli.plan_text import print_plan

    print_plan(plan, planner)
