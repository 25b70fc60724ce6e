"""The report on the terminal, and as an HTML file."""

import io
from html.parser import HTMLParser

from rich.console import Console

from app.render.bench import prompt_line, report
from app.tables import html_page
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
        "grounded at temperature 0",
        "1 excluded because of endless repetition",
        "1.20",  # the median of 1.5 and 0.9
        "0.90 to 1.50",
        "0.90 <b>two</b>",
        "context < full",
        "chat at temperature 0.7",
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


def test_a_prompt_has_a_line_with_its_ratios_or_why_it_does_not_count() -> None:
    made = record({FIXED: [2.0, 0.5], AUTO: [1.5, 1.5]})
    line = "grounded at temperature 0  one: combined:auto 1.50 lookup:fixed:4 1.25"
    assert prompt_line(made) == line
    assert prompt_line(record({AUTO: 1.0}, excluded="loop")).endswith("excluded: loop")
    failed = PromptRecord("chat", "one", 0.7, failure="the context is full")
    assert prompt_line(failed) == "chat at temperature 0.7  one: failed: the context is full"
