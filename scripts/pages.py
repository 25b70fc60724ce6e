"""Find dead links in the pages, and commands, options and make targets that do not exist.

    python scripts/pages.py        exit code 1 if there are any

Links to the web are not followed.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
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
"""Shell words that end a command."""


def main() -> int:
    """Check all pages; 1 if something is wrong."""
    faults = [*wrong_pages(ROOT)]
    end = f"{len(faults)} faults" if faults else "links and commands of the pages are right"
    print("\n".join((*faults, end)))
    return int(bool(faults))


def wrong_pages(root: Path) -> Iterator[str]:
    """Every fault in the pages of a checkout."""
    options = options_by_command()
    makefile = root / "Makefile"
    rules = makefile.read_text() if makefile.is_file() else ""
    targets = set(re.findall(r"^([\w-]+):", rules, re.MULTILINE))
    yield from _unlisted_pages(root)
    for page in sorted({page for pattern in PAGES for page in root.glob(pattern)}):
        text = page.read_text()
        commands, calls = _wrong_commands(text, options), _wrong_targets(text, targets)
        for fault in (*_dead_links(page, text), *commands, *calls):
            yield f"{page.relative_to(root)}: {fault}"


def options_by_command() -> dict[str, set[str]]:
    """The names of the options of each command."""
    from app.cli.main import chat

    options = {
        words: _names(command.get_params(context)) for words, command, context in every_command()
    }
    options["kvchat"] |= _names(chat.params)
    options["kvchat web"] |= options["kvchat"]
    return options


def _names(params: Iterable[click.Parameter]) -> set[str]:
    return {name for each in params for name in (*each.opts, *each.secondary_opts)}


def _unlisted_pages(root: Path) -> Iterator[str]:
    readme = root / "README.md"
    links = _LINK.findall(readme.read_text()) if readme.is_file() else []
    linked = {link.partition("#")[0] for link in links}
    for page in sorted((root / "docs").glob("*.md")):
        if f"docs/{page.name}" not in linked:
            yield f"README.md: there is no link to docs/{page.name}"


def _wrong_targets(text: str, targets: set[str]) -> Iterator[str]:
    """Calls of make, in a block or a code span, without such a target."""
    spans = re.findall(r"`(make [\w-]+)`", _FENCE.sub("", text))
    lines = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    for line in dict.fromkeys((*spans, *lines)):
        call = re.match(r"make ([\w-]+)", line)
        if call and targets and call[1] not in targets:
            yield f"`make {call[1]}`: the Makefile has no such target"


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


def _wrong_commands(text: str, options: Mapping[str, set[str]]) -> Iterator[str]:
    """Calls of kvchat, in a block or a code span, with an option that the command lacks."""
    for line in dict.fromkeys(_written_commands(text)):
        words = _words(line)
        command = "kvchat"
        while len(words) > 1 and f"{command} {words[1]}" in options:
            command = f"{command} {words.pop(1)}"
        for word in words[1:]:
            option = word.split("=")[0].rstrip(",.:)")
            if option == "--":
                break
            known = {*options[command], "--help"}
            if re.fullmatch(r"--[a-z][\w-]*", option) and option not in known:
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
