"""`kvchat bench`: the arms of speculation that are faster than plain decoding here."""

from pathlib import Path

import click

from app import bench, paths
from app.bench import BenchOptions
from app.cli.options import FILE, Count, gathered, joined, opening_options, sampling
from app.config import load_settings
from app.console import EXIT_FAILED, Progress, note, print_line
from app.opening import ModelRequest
from app.render.bench import report
from app.tables import check_page, print_parts, write_page
from engine.experiment.records import Results, read_results

bench_options = joined(
    opening_options,
    click.option("--prompt-set", "sets", multiple=True, metavar="NAME|FILE",
                 help="Prompts: grounded (tasks about a given text), chat, or a JSONL file; "
                      "repeatable. [grounded and chat]"),
    click.option("--prompts", "n_prompts", default=6, show_default=True, type=Count(0),
                 help="Prompts per set; 0: all."),
    click.option("--arm", "arms", multiple=True, metavar="ARM",
                 help="Draft settings to compare with plain decoding: PREDICTOR:auto or "
                      "PREDICTOR:fixed:LENGTH; repeatable. [auto, and fixed lengths 2, 4 and 8, "
                      "for each predictor]"),
    click.option("--blocks", "n_blocks", default=1, show_default=True, type=Count(),
                 help="Blocks per prompt and --arm; a block is four replies: plain, --arm, "
                      "--arm, plain."),
    click.option("--max-tokens", "n_tokens", default=128, show_default=True, type=Count(2),
                 help="Maximum tokens per reply."),
    click.option("--temperature", "temperatures", multiple=True, type=sampling("temperature"),
                 help="Sampling temperature; 0: greedy; repeatable. [0]"),
    click.option("--seed", default=1, show_default=True,
                 help="Seed for choosing prompts and for sampling."),
    click.option("--json", "json_path", type=FILE,
                 help="Save the results to this JSON file after each prompt; if the file exists, "
                      "continue the run in that file."),
    click.option("--html", "html_path", type=FILE, help="Write the report to this HTML file."),
    click.option("--show", "show_path", type=FILE, help="Print the report of an earlier run."),
    click.option("--write", "preset_name", metavar="PRESET",
                 help="Save the recommended settings in this preset."),
    gathered("options", "app.bench:BenchOptions"),
)  # fmt: skip


@click.command(name="bench")
@click.argument("model", required=False)
@bench_options
def command(
    asked: ModelRequest,
    options: BenchOptions,
    json_path: Path | None,
    html_path: Path | None,
    show_path: Path | None,
    preset_name: str | None,
) -> int:
    """Measure the speedup of speculation over plain decoding with MODEL.

    \b
    kvchat bench                                    default model; takes minutes
    kvchat bench qwen2.5-7b --draft qwen2.5-0.5b    with a draft model
    kvchat bench --prompt-set mine.jsonl --prompts 0    all prompts of a file
    kvchat bench --json all.json --html all.html    save results and report
    kvchat bench --json all.json --html all.html    continue the stopped run

    MODEL defaults to the default model in the settings, else to the model used last. Ctrl+C stops
    the run and prints the results so far.
    """  # noqa: D301  click wants the backspace character itself
    check_page(html_path)
    if show_path is not None:
        if json_path is not None or preset_name is not None:
            raise click.UsageError("--show only prints a report: leave out --json and --write")
        _print_report(read_results(show_path), html_path)
        return 0
    target = None if preset_name is None else bench.preset_file(preset_name, paths.presets_dir())
    with Progress() as progress:
        settings = load_settings().settings
        benchmark = bench.Benchmark(options, asked, settings, json_path, progress)
        exit_code = benchmark.run()
    results = benchmark.results
    if results is None or not results.prompts:
        note("no prompt was measured completely")
        return exit_code or EXIT_FAILED
    bench.store_speed(benchmark, asked)
    problem = ""
    if target is not None and preset_name is not None and exit_code == 0:
        problem = bench.write_recommendation(target, results, benchmark.configuration, preset_name)
    _print_report(results, html_path)
    if problem:
        note(f"{target} was not changed: {problem}")
    elif target is not None and exit_code == 0:
        print_line(f"Written to {target}")
    return exit_code


def _print_report(results: Results, html_path: Path | None) -> None:
    parts = tuple(report(results))
    print_parts(parts)
    if html_path is not None:
        write_page(html_path, parts)
