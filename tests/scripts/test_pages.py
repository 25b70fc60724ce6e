"""The pages: checked for links and options that do not exist."""

import re
import subprocess
import sys
from pathlib import Path

import man_page
import pages
import pytest


def test_every_link_and_command_of_the_pages_is_right() -> None:
    # In a process of its own: click caches the help option of the first caller.
    command = [sys.executable, "scripts/pages.py"]
    done = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_wrong_on_a_page_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/there.md").write_text("# A heading, or two\n")
    (tmp_path / "README.md").write_text(
        "[a](docs/there.md#a-heading-or-two) [b](docs/gone.md) [c](docs/there.md#none)\n"
        "[d](https://example.org/x) `kvchat plan MODEL --ctx 4k` `kvchat plan --contxt 4k`\n"
        "```sh\nkvchat MODEL --theme x\nkvchat run \\\n  --bogus | other --thing\n```\n"
        "```\n[not a link](gone)\n```\n"
    )
    assert [*pages.wrong_pages(tmp_path)] == [
        "README.md: the link docs/gone.md leads nowhere",
        "README.md: the link docs/there.md#none leads to no heading",
        "README.md: `kvchat run    --bogus | other --thing`: kvchat run has no option --bogus",
        "README.md: `kvchat plan --contxt 4k`: kvchat plan has no option --contxt",
    ]


def test_a_page_that_is_not_listed_and_a_target_that_is_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("[here](docs/here.md)\n")
    (tmp_path / "docs/here.md").write_text(
        "`make test` and `make tea`\n```sh\nmake coffee # hot\n```\n"
    )
    (tmp_path / "docs/lost.md").write_text("# Lost\n")
    (tmp_path / "Makefile").write_text("test: setup\n\t@true\n")
    assert [*pages.wrong_pages(tmp_path)] == [
        "README.md: there is no link to docs/lost.md",
        "docs/here.md: `make tea`: the Makefile has no such target",
        "docs/here.md: `make coffee`: the Makefile has no such target",
    ]


@pytest.mark.parametrize(
    ("name", "n_lines"), [("README.md", 90), ("CONTRIBUTING.md", 70), ("CHANGELOG.md", 60)]
)
def test_the_first_pages_have_few_lines(name: str, n_lines: int) -> None:
    assert len((pages.ROOT / name).read_text().splitlines()) <= n_lines


def test_pages_are_short() -> None:
    generated = re.compile(r"<!-- \w+: begin -->.*?<!-- \w+: end -->", re.DOTALL)
    texts = {path: path.read_text() for path in (pages.ROOT / "docs").glob("*.md")}
    words = {
        path.name: len(re.findall(r"\S*\w\S*", generated.sub("", text)))
        for path, text in texts.items()
    }
    assert {name: n for name, n in words.items() if n > 1500} == {}
    assert sum(words.values()) <= 20_000
    assert len((pages.ROOT / "README.md").read_text().split()) <= 650


def test_the_manual_has_every_command_and_no_line_that_troff_obeys_by_accident() -> None:
    manual = man_page.man_page()
    for words, _, _ in man_page.every_command():
        assert words.replace("-", r"\-") in manual
    requests = set(re.findall(r"^\.(\S+)", manual, re.MULTILINE))
    assert requests <= {"TH", "SH", "SS", "B", "BR", "TP", "PP", "nf", "fi", "br"}
    assert not re.search(r"^'", manual, re.MULTILINE)
