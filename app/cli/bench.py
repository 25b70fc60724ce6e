"""`kvchat bench`: which arm of speculation is faster than plain decoding here, and what to set."""

import time
from pathlib import Path

import click

from app import bench, paths
from app.bench import BenchOptions
from app.cli.options import FILE, Count, gathered, joined, opening_options, sampling
from app.config import load_settings
from app.console import Progress, note
from app.format import counted, seconds
from app.opening import ModelRequest
from app.render.bench import prompt_line, report
from app.tables import console, html_page
from engine.experiment.prompts import BenchPrompt
from engine.experiment.records import PromptRecord, Results, read_results, write_text

bench_options = joined(
    opening_options,
    click.option("--prompt-set", "sets", multiple=True, metavar="NAME|FILE",
                 help="Prompt set: grounded, chat or a JSONL file; repeatable. [grounded and "
                      "chat]"),
    click.option("--prompts", "n_prompts", default=6, show_default=True, type=Count(0),
                 help="Prompts per set; 0: all."),
    click.option("--arm", "arms", multiple=True, metavar="ARM",
                 help="Settings to compare with plain decoding, as PREDICTOR:auto or "
                      "PREDICTOR:fixed:LENGTH; repeatable. [auto, and fixed lengths 2, 4 and 8, "
                      "for each predictor]"),
    click.option("--blocks", "n_blocks", default=1, show_default=True, type=Count(),
                 help="Blocks per prompt and arm; a block is four replies: plain, arm, arm, "
                      "plain."),
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
    if show_path is not None:
        if json_path is not None or preset_name is not None:
            raise click.UsageError("--show only prints a report: leave out --json and --write")
        _report(read_results(show_path), html_path)
        return 0
    target = None if preset_name is None else bench.preset_file(preset_name, paths.presets_dir())
    with Progress() as line:
        settings = load_settings().settings
        benchmark = bench.Benchmark(options, asked, settings, json_path, line.note)
        exit_code = benchmark.run(_BenchProgress(line))
    results = benchmark.results
    if results is None or not results.prompts:
        note("no prompt was measured completely")
        return exit_code or bench.EXIT_FAILED
    bench.store_speed(benchmark, asked)
    problem = ""
    if target is not None and preset_name is not None and exit_code == 0:
        problem = bench.write_recommendation(target, results, benchmark.configuration, preset_name)
    _report(results, html_path)
    if problem:
        note(f"{target} was not changed: {problem}")
    elif target is not None and exit_code == 0:
        console().print(f"Written to {target}", soft_wrap=True)
    return exit_code


def _report(results: Results, html_path: Path | None) -> None:
    parts = tuple(report(results))
    screen = console()
    for part in parts:
        screen.print(part)
    if html_path is not None:
        write_text(html_path, html_page(parts))


class _BenchProgress:
    """A line for what is measured and the time left, and a line for each prompt."""

    def __init__(self, line: Progress) -> None:
        self._line = line
        self._n_replies = self._n_done = 0
        self._start_s = 0.0

    def begin(self, n_prompts: int, n_replies: int) -> None:
        """Print how much is measured."""
        self._line.note(f"{counted(n_prompts, 'prompt')}, {counted(n_replies, 'reply')}")
        self._n_replies, self._start_s = n_replies, time.monotonic()

    def reply_done(self, prompt: BenchPrompt, arm: str) -> None:
        """Show the prompt, the arm and the time left."""
        self._n_done += 1
        left_s = (time.monotonic() - self._start_s) * (self._n_replies / self._n_done - 1)
        self._line.show(
            f"{self._n_done} of {self._n_replies} · about {seconds(left_s)} left · "
            f"{prompt.set_name} {prompt.name} · {arm}"
        )

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        """Print the result of a prompt."""
        self._line.clear()
        for text in (prompt_line(record), *record.notes):
            console(err=True).print(text, soft_wrap=True)
        self._n_done = n_done
