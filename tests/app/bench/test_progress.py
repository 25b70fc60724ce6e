"""What is said while a benchmark runs."""

import io
from dataclasses import replace

from rich.console import Console

from app.bench.job import Unit
from app.bench.progress import ConsoleProgress, prompt_line, time_left
from app.bench.prompt_sets import Prompt
from app.bench.records import PromptRecord
from tests.app.bench.made_results import record

UNIT = Unit(Prompt("chat", "[red]one", "?"), 0.0, 0)


def test_the_time_left_goes_by_the_pace_so_far() -> None:
    assert time_left(10.0, 2, 8) == 30.0
    assert time_left(10.0, 8, 8) == 0.0
    assert time_left(0.0, 0, 8) is None


def test_a_line_has_the_median_of_every_policy_auto_first_and_short_drafts_before_long() -> None:
    made = record({"lookup:fixed:16": [2.0, 1.0], "lookup:fixed:2": [1.25], "combined:auto": [1.5]})
    line = "grounded at 0  one: combined:auto 1.50 lookup:fixed:2 1.25 lookup:fixed:16 1.50"
    assert prompt_line(made) == line


def test_a_line_says_where_nothing_was_drafted() -> None:
    made = record({"suffix:auto": [0.62]})
    runs = tuple(replace(run, n_verified=0) for run in made.runs)
    assert prompt_line(replace(made, runs=runs)).endswith("suffix:auto 0.62 (no drafts)")


def test_a_line_says_why_a_prompt_does_not_count() -> None:
    assert "loop, not in the means" in prompt_line(record({"lookup:band": [1.0]}, is_loop=True))
    failed = PromptRecord("chat", "one", 0.7, failure="the context is full")
    assert prompt_line(failed) == "chat at 0.7  one: failed: the context is full"


def told(*, is_terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=200, color_system=None)
    with ConsoleProgress(console, 4) as progress:
        progress.run_done(UNIT, "plain")
        progress.prompt_done(record({"lookup:band": [1.0]}, prompt="[red]one"), 2)
    return file.getvalue()


def test_without_a_terminal_there_is_one_line_a_prompt_with_the_time_left() -> None:
    lines = told(is_terminal=False).splitlines()
    assert len(lines) == 1
    assert "[red]one: lookup:band 1.00" in lines[0]
    assert lines[0].endswith("s left]")


def test_on_a_terminal_a_bar_says_what_runs_and_how_long_it_takes() -> None:
    text = told(is_terminal=True)
    assert "1/4" in text
    assert "left" in text
    assert "chat [red]one · plain" in text
