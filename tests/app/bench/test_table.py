"""The table on the terminal, the HTML file, and how far a benchmark is."""

import io
from dataclasses import replace
from html.parser import HTMLParser

from rich.console import Console

from app.bench.prompt_sets import BenchPrompt
from app.bench.results import PromptRecord, Results
from app.bench.table import ConsoleProgress, prompt_line, report, time_left
from app.console import html_page
from tests.app.bench.made_results import record, results

AUTO, FIXED = "combined:auto", "lookup:fixed:4"
EVIL = "</pre><script>alert('x')</script> & \"more\""


class Checker(HTMLParser):
    """Collects the elements, and what would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "onload")]


def made() -> Results:
    return results(
        record({AUTO: [1.5], FIXED: [2.0]}, prompt="one", text=EVIL),
        record({AUTO: [0.9], FIXED: [0.5]}, prompt="<b>two</b>"),
        record({AUTO: [4.0], FIXED: [5.0]}, prompt="three", is_loop=True),
        PromptRecord("grounded", "four", 0.0, failure="context < full"),
        record({AUTO: [1.0], FIXED: [0.9]}, set_name="chat", temperature=0.7),
        policies=[AUTO, FIXED],
    )


def printed(made: Results) -> str:
    file = io.StringIO()
    console = Console(file=file, width=160, highlight=False)
    for part in report(made):
        console.print(part)
    return file.getvalue()


def test_the_table_tells_everything_that_was_found() -> None:
    text = printed(made())
    for part in (
        "grounded at 0",
        "1 end in a loop",
        "1.162",  # the square root of 1.5 * 0.9
        "0.90 <b>two</b>",
        "context < full",
        "best fixed",
        "chat at 0.7",
        "0.95 of plain",
        "Recommended: combined:auto",
    ):
        assert part in text, part


def test_on_a_noisy_machine_nothing_is_recommended() -> None:
    noisy = results(record({AUTO: [1.5], FIXED: [1.0]}), policies=[AUTO, FIXED])
    first, *others = noisy.prompts[0].runs
    runs = (replace(first, decode_tps=80.0), *others)
    assert "nothing yet" not in printed(noisy)
    shaken = replace(noisy, prompts=(replace(noisy.prompts[0], runs=runs),))
    assert "nothing yet" in printed(shaken)
    assert "differ by 25%" in printed(shaken)


def test_the_page_loads_nothing_and_escapes_the_text_of_the_model() -> None:
    text = html_page(report(made()))
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.links == []
    assert not checker.tags & {"script", "link", "img", "iframe", "b"}
    assert "&lt;b&gt;two&lt;/b&gt;" in text


PROMPT = BenchPrompt("chat", "[red]one", "?")


def test_the_time_left_goes_by_the_pace_so_far() -> None:
    assert time_left(10.0, 2, 8) == 30.0
    assert time_left(10.0, 8, 8) == 0.0
    assert time_left(0.0, 0, 8) is None


def test_a_line_has_the_median_of_every_policy_auto_first_and_short_drafts_before_long() -> None:
    made = record({"lookup:fixed:16": [2.0, 1.0], "lookup:fixed:2": [1.25], "combined:auto": [1.5]})
    line = "grounded at 0  one: combined:auto 1.50 lookup:fixed:2 1.25 lookup:fixed:16 1.50"
    assert prompt_line(made) == line


def test_a_line_says_why_a_prompt_does_not_count() -> None:
    assert "loop, not in the means" in prompt_line(record({"lookup:auto": [1.0]}, is_loop=True))
    failed = PromptRecord("chat", "one", 0.7, failure="the context is full")
    assert prompt_line(failed) == "chat at 0.7  one: failed: the context is full"


def told(*, is_terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=200, color_system=None)
    with ConsoleProgress(console, 4) as progress:
        progress.run_done(PROMPT, "plain")
        progress.prompt_done(record({"lookup:auto": [1.0]}, prompt="[red]one"), 2)
    return file.getvalue()


def test_without_a_terminal_there_is_one_line_a_prompt_with_the_time_left() -> None:
    lines = told(is_terminal=False).splitlines()
    assert len(lines) == 1
    assert "[red]one: lookup:auto 1.00" in lines[0]
    assert lines[0].endswith("s left]")


def test_on_a_terminal_a_bar_says_what_runs_and_how_long_it_takes() -> None:
    text = told(is_terminal=True)
    assert "1/4" in text
    assert "left" in text
    assert "chat [red]one · plain" in text
