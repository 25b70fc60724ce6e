"""`kvchat bench`: what speculation gains here, measured in pairs, and what to set."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import FILE, Count, joined, opening_options, sampling
from engine.configuration import MAX_DRAFT, ControllerName

if TYPE_CHECKING:
    from app.opening import ModelRequest

LENGTHS = "2,4,8"
CONTROLLERS = [name.value for name in ControllerName]


def listed(allowed: list[str] | None) -> Callable[..., tuple[str, ...]]:
    """A click callback that reads names with commas between them; None allows all."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:  # noqa: ARG001  click's signature
        names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
        unknown = [name for name in names if allowed is not None and name not in allowed]
        if unknown and allowed:
            raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        if value is not None and not names:
            raise click.BadParameter("the list is empty")
        return names

    return check


bench_options = joined(
    opening_options,
    click.option("--prompt-set", "sets", multiple=True, metavar="NAME|FILE",
                 help="Prompt set: grounded, chat or a JSONL file; repeatable. [grounded and "
                      "chat]"),
    click.option("--prompts", "n_prompts", default=4, show_default=True, type=Count(0),
                 help="Prompts per set; 0: all."),
    click.option("--only", multiple=True, metavar="PROMPT",
                 help="Name of a prompt to run, instead of a random choice; repeatable."),
    click.option("--pairs", "n_pairs", default=2, show_default=True, type=Count(),
                 help="Runs of each policy per prompt."),
    click.option("--max-tokens", "n_tokens", default=128, show_default=True, type=Count(2),
                 help="Maximum tokens of a reply."),
    click.option("--temperature", "temperatures", multiple=True, type=sampling("temperature"),
                 help="Sampling temperature; 0: greedy; repeatable. [0]"),
    click.option("--seed", default=1, show_default=True,
                 help="Seed of the prompt selection and of the sampling."),
    click.option("--predictors", callback=listed(None),
                 help="Predictors, separated by commas: lookup, suffix, combined, draft. [all "
                      "that are available]"),
    click.option("--controllers", default="auto,fixed", show_default=True,
                 callback=listed(CONTROLLERS),
                 help=f"Controllers, separated by commas: {', '.join(CONTROLLERS)}."),
    click.option("--lengths", default=LENGTHS, show_default=True,
                 callback=listed([str(n) for n in range(1, MAX_DRAFT + 1)]),
                 help="Draft lengths of the fixed controller, separated by commas."),
    click.option("--policy", "policies", multiple=True, metavar="NAME",
                 help="Policy to measure, such as lookup:fixed:3, instead of --predictors, "
                      "--controllers and --lengths; repeatable."),
    click.option("--json", "json_path", type=FILE,
                 help="Write the runs to this file after each prompt."),
    click.option("--html", "html_path", type=FILE, help="Write the report to this file, as HTML."),
    click.option("--resume", "resume_path", type=FILE,
                 help="Resume an earlier run from its JSON file."),
    click.option("--show", "show_path", type=FILE, help="Print the report of an earlier run."),
    click.option("--write", "preset_name", metavar="PRESET",
                 help="Save the recommended settings in this preset."),
)  # fmt: skip


@click.command(name="bench")
@click.argument("model", required=False)
@bench_options
def command(
    asked: "ModelRequest",
    sets: tuple[str, ...],
    n_prompts: int,
    only: tuple[str, ...],
    n_pairs: int,
    n_tokens: int,
    temperatures: tuple[float, ...],
    seed: int,
    predictors: tuple[str, ...],
    controllers: tuple[str, ...],
    lengths: tuple[str, ...],
    policies: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
    resume_path: Path | None,
    show_path: Path | None,
    preset_name: str | None,
) -> int:
    """Measure the speedup of speculation over plain decoding with MODEL, in paired runs.

    \b
    kvchat bench                                    default model; takes minutes
    kvchat bench qwen2.5-7b --draft qwen2.5-0.5b    with a draft model
    kvchat bench --prompt-set mine.jsonl --prompts 0    all prompts of a file
    kvchat bench --json all.json --html all.html    save runs and report
    kvchat bench --resume all.json                  resume

    Default MODEL: the model of the settings, else the last one used. Ctrl+C stops and prints the
    results so far.
    """  # noqa: D301  click wants the backspace character itself
    from app.bench.benchmark import BenchmarkFiles, BenchOptions, run_benchmark, show
    from app.bench.policies import PolicyChoice
    from app.bench.prompt_sets import DEFAULT_SETS, PromptChoice
    from app.bench.results import read_results
    from app.config import load_settings

    if show_path is not None:
        if any(each is not None for each in (json_path, resume_path, preset_name)):
            raise click.UsageError(
                "--show only prints a report: leave out --json, --resume and --write"
            )
        show(read_results(show_path), html_path)
        return 0
    options = BenchOptions(
        PromptChoice(sets or DEFAULT_SETS, n_prompts or None, only, seed),
        PolicyChoice(
            predictors, tuple(map(ControllerName, controllers)), tuple(map(int, lengths)), policies
        ),
        n_pairs=n_pairs,
        n_tokens=n_tokens,
        temperatures=temperatures or (0.0,),
    )
    files = BenchmarkFiles(json_path, html_path, resume_path, preset_name)
    return run_benchmark(options, asked, files, load_settings().settings)
