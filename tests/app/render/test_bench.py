"""The report on the terminal, the HTML file, and how far a benchmark is."""

import io
from html.parser import HTMLParser

from rich.console import Console

from app.console import html_page
from app.render.bench import BenchProgress, prompt_line, report, time_left
from engine.experiment.prompts import Prompt
from engine.experiment.records import PromptRecord, Results
from tests.engine.experiment.made_results import record, results

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
        record({AUTO: 1.5, FIXED: 2.0}, prompt="one"),
        record({AUTO: 0.9, FIXED: 0.5}, prompt="<b>two</b>" + EVIL),
        record({AUTO: 4.0, FIXED: 5.0}, prompt="three", excluded="loop"),
        PromptRecord("grounded", "four", 0.0, failure="context < full"),
        record({AUTO: 1.0, FIXED: 0.9}, set_name="chat", temperature=0.7),
        arms=[AUTO, FIXED],
    )


def printed(made: Results) -> str:
    file = io.StringIO()
    console = Console(file=file, width=160, highlight=False)
    for part in report(made):
        console.print(part)
    return file.getvalue()


def test_the_report_has_every_result() -> None:
    text = printed(made())
    for part in (
        "grounded at 0",
        "1 end in a loop",
        "1.20",  # the median of 1.5 and 0.9
        "0.90 to 1.50",
        "0.90 <b>two</b>",
        "context < full",
        "chat at 0.7",
        "All prompts",
        "Recommended: nothing yet",
    ):
        assert part in text, part


def test_the_page_loads_nothing_and_escapes_the_text_of_the_model() -> None:
    text = html_page(report(made()))
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.links == []
    assert not checker.tags & {"script", "link", "img", "iframe", "b"}
    assert "&lt;b&gt;two&lt;/b&gt;" in text


PROMPT = Prompt("chat", "[red]one", "?")


def test_the_time_left_is_that_of_the_pace_so_far() -> None:
    assert time_left(10.0, 2, 8) == 30.0
    assert time_left(10.0, 8, 8) == 0.0
    assert time_left(0.0, 0, 8) is None


def test_a_prompt_has_a_line_with_its_ratios_or_why_it_does_not_count() -> None:
    line = "grounded at 0  one: combined:auto 1.50 lookup:fixed:4 1.25"
    assert prompt_line(record({FIXED: [2.0, 0.5], AUTO: [1.5, 1.5]})) == line
    assert prompt_line(record({AUTO: 1.0}, excluded="loop")).endswith("1.00 (loop, excluded)")
    failed = PromptRecord("chat", "one", 0.7, failure="the context is full")
    assert prompt_line(failed) == "chat at 0.7  one: failed: the context is full"


def shown(*, is_terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=200, color_system=None)
    with BenchProgress(console) as progress:
        progress.begin(made().subject, 1, 4)
        progress.reply_done(PROMPT, "plain")
        progress.prompt_done(record({AUTO: 1.0}, prompt="[red]one"), 2)
    return file.getvalue()


def test_without_a_terminal_there_is_one_line_a_prompt_with_the_time_left() -> None:
    head, line = shown(is_terminal=False).splitlines()
    assert head == "made.gguf: 1 prompt, 2 arms and plain decoding, 4 replies of up to 64 tokens"
    assert "[red]one: combined:auto 1.00" in line
    assert line.endswith("s left]")


def test_on_a_terminal_a_bar_shows_the_reply_and_the_time_left() -> None:
    text = shown(is_terminal=True)
    assert "1/4" in text
    assert "left" in text
    assert "chat [red]one · plain" in text
