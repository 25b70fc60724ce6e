"""Finds dead links in the pages, and commands and options that do not exist; 1 if there are any.

    python scripts/pages.py

Links to the web are not followed.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from man_page import every_command

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "*/README.md", "docs/*.md", "benchmarks/results/*.md", "tests/contracts/*.md")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(kvchat [^`]+)`")
_END = frozenset({"|", ">", ">>", "<", "&&", "||", ";", "&", "#"})
"""Words of a shell that end a command."""


def main() -> int:
    """Check all pages."""
    faults = [*wrong_pages(ROOT)]
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "links and commands of the pages are right")
    return 1 if faults else 0


def wrong_pages(root: Path) -> Iterator[str]:
    """Dead links, and commands and options that are none, in every page of a checkout."""
    options = {
        words: {name for each in command.get_params(context) for name in _names(each)}
        for words, command, context in every_command()
    }
    from app.cli.main import chat

    options["kvchat"] |= {name for each in chat.params for name in _names(each)}
    options["kvchat web"] |= options["kvchat"]
    makefile = root / "Makefile"
    targets = set(
        re.findall(r"^([\w-]+):", makefile.read_text() if makefile.is_file() else "", re.M)
    )
    yield from unlisted_pages(root)
    for page in sorted({page for pattern in PAGES for page in root.glob(pattern)}):
        text = page.read_text()
        name = page.relative_to(root)
        yield from (f"{name}: {fault}" for fault in _dead_links(page, text))
        yield from (f"{name}: {fault}" for fault in wrong_commands(text, options))
        yield from (f"{name}: {fault}" for fault in _wrong_targets(text, targets))


def unlisted_pages(root: Path) -> Iterator[str]:
    """Pages of `docs` that the README has no link to."""
    readme = root / "README.md"
    links = _LINK.findall(readme.read_text()) if readme.is_file() else []
    linked = {link.partition("#")[0] for link in links}
    for page in sorted((root / "docs").glob("*.md")):
        if f"docs/{page.name}" not in linked:
            yield f"README.md: there is no link to docs/{page.name}"


def _wrong_targets(text: str, targets: set[str]) -> Iterator[str]:
    """What is written as a command of make, in a block or by itself, and has no target."""
    spans = re.findall(r"`(make [\w-]+)`", _FENCE.sub("", text))
    lines = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    for line in dict.fromkeys((*spans, *lines)):
        asked = re.match(r"make ([\w-]+)", line)
        if asked and targets and asked[1] not in targets:
            yield f"`make {asked[1]}`: the Makefile has no such target"


def _names(param: click.Parameter) -> Iterator[str]:
    yield from (*param.opts, *param.secondary_opts)


def _dead_links(page: Path, text: str) -> Iterator[str]:
    for target in _LINK.findall(_FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page if not path else page.parent / path
        if not there.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and there.suffix == ".md" and anchor not in _anchors(there.read_text()):
            yield f"the link {target} leads to no heading"


def _anchors(text: str) -> set[str]:
    plain = (re.sub(r"[^\w\- ]", "", each.lower()) for each in _HEADING.findall(text))
    return {each.replace(" ", "-") for each in plain}


def wrong_commands(text: str, options: dict[str, set[str]]) -> Iterator[str]:
    """What is written as a command of kvchat and is none.

    Args:
        text: A page in Markdown.
        options: The options of each command by its words.
    """
    for line in dict.fromkeys(_written_commands(text)):
        words = _words(line)
        command = "kvchat"
        while len(words) > 1 and f"{command} {words[1]}" in options:
            command = f"{command} {words.pop(1)}"
        for word in words[1:]:
            option = word.split("=")[0].rstrip(",.:)")
            if option == "--":
                break
            is_option = re.fullmatch(r"--[a-z][\w-]*", option) is not None
            if is_option and option not in {*options[command], "--help"}:
                yield f"`{line}`: {command} has no option {option}"


def _written_commands(text: str) -> Iterator[str]:
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            start = line.strip().removeprefix("$ ")
            if start.startswith("kvchat "):
                yield start
    yield from (" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", text)))


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is cut off
        words = line.split()
    end = next((i for i, word in enumerate(words) if word in _END), len(words))
    return words[:end]


if __name__ == "__main__":
    sys.exit(main())
