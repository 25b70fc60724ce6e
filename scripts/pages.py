"""Writes the pages that the commands themselves say, and finds what is wrong in the others.

    python scripts/pages.py           write docs/commands.md and the man page docs/kvchat.1
    python scripts/pages.py --check   exit status 1 where these are old, a link leads nowhere, or a
                                     page names a command or option that is none

Links to the web are not followed.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
COMMANDS_PAGE = Path("docs/commands.md")
MAN_PAGE = Path("docs/kvchat.1")
WIDTH = 80
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(kvchat [^`]+)`")
_END = frozenset({"|", ">", ">>", "<", "&&", "||", ";", "&", "#"})
"""Words of a shell behind which a command's own words end."""


def main() -> int:
    """Write the pages, or check all of them."""
    pages = {COMMANDS_PAGE: commands_page(), MAN_PAGE: man_page()}
    if "--check" not in sys.argv[1:]:
        for path, text in pages.items():
            (ROOT / path).write_text(text)
        return 0
    faults = [*old_pages(pages, ROOT), *wrong_pages(ROOT)]
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "the pages are as the commands say")
    return 1 if faults else 0


# --- what the commands say ---


def every_command() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with the words that call it and a context of a fixed width."""
    from app.cli.main import cli

    context = click.Context(
        cli, info_name="kvchat", terminal_width=WIDTH, help_option_names=["--help", "-h"]
    )
    yield "kvchat", cli, context
    yield from _below(cli, context)


def _below(
    group: click.Group, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, terminal_width=WIDTH)
        yield inner.command_path, command, inner
        if isinstance(command, click.Group):
            yield from _below(command, inner)


def commands_page() -> str:
    """Every command's help, as Markdown."""
    parts = [
        "# Every command\n",
        "What `--help` says, written by `python scripts/pages.py`; `kvchat completion SHELL` makes "
        "a\nshell complete it, and `man kvchat` is the same in short.\n",
    ]
    for words, command, context in every_command():
        parts.append(f"## {words}\n\n```text\n{command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)


def man_page() -> str:
    """The manual in the format of man(7)."""
    from app import __version__
    from app.cli.main import chat
    from app.cli.where import files_and_folders

    lines = [
        f'.TH KVCHAT 1 "" "kvchat {__version__}" "User Commands"',
        ".SH NAME",
        r"kvchat \- a terminal cockpit for local language models",
        ".SH SYNOPSIS",
        r".B kvchat",
        r"[\fIMODEL\fR] [\fIOPTIONS\fR]",
        ".br",
        r".B kvchat",
        r"\fICOMMAND\fR [\fIARGUMENTS\fR]",
    ]
    for words, command, context in every_command():
        if words != "kvchat":
            lines += [f'.SS "{_roff(words)}"', *_usage(command, context)]
            lines += [*_meaning(command), *_options(command.get_params(context), context)]
            continue
        lines += [".SH DESCRIPTION", *_meaning(command), ".SH OPTIONS"]
        lines += [*_options((*chat.params, *command.get_params(context)), context), ".SH COMMANDS"]
    kept = ", ".join(files_and_folders())
    lines += [".SH FILES", f"Where kvchat keeps its {kept} says", '.BR "kvchat where" .']
    lines += [".SH ENVIRONMENT", *_entries(ENVIRONMENT)]
    return "\n".join(lines) + "\n"


ENVIRONMENT = (
    ("KVCHAT_MODELS", "Folders that are searched for models before all others, separated by :."),
    ("NO_COLOR", "Where it is set, nothing is coloured, on the screen and in what commands print."),
    ("TEXTUAL_ANIMATIONS", "full, basic or none: how much moves on the screen."),
    ("XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME, XDG_CACHE_HOME", "Where files are kept."),
)


def _usage(command: click.Command, context: click.Context) -> Iterator[str]:
    pieces = " ".join(piece.strip() for piece in command.collect_usage_pieces(context))
    yield from (rf"\fB{_roff(context.command_path)}\fR {_roff(pieces)}", ".PP")


def _meaning(command: click.Command) -> Iterator[str]:
    for paragraph in (command.help or "").split("\n\n"):
        is_example = paragraph.lstrip().startswith("\b")
        text = "\n".join(line.strip() for line in paragraph.replace("\b", "").strip().splitlines())
        yield from (".nf", _roff(text), ".fi", ".PP") if is_example else (_roff(text), ".PP")


def _options(params: Iterable[click.Parameter], context: click.Context) -> Iterator[str]:
    records = (param.get_help_record(context) for param in params)
    return _entries(record for record in records if record is not None and record[1])


def _entries(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, meaning in entries:
        yield from (".TP", rf"\fB{_roff(name)}\fR", _roff(meaning))


def _roff(text: str) -> str:
    """A text as troff takes it: no line of it is a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(
        rf"\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n")
    )


# --- what is wrong ---


def old_pages(pages: dict[Path, str], root: Path) -> Iterator[str]:
    """The written pages that the commands no longer say."""
    for path, text in pages.items():
        there = root / path
        if not there.is_file() or there.read_text() != text:
            yield f"{path} is not what the commands say: run python scripts/pages.py"


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
    for page in sorted({*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("*/README.md")}):
        text = page.read_text()
        name = page.relative_to(root)
        yield from (f"{name}: {fault}" for fault in _dead_links(page, text))
        if name != COMMANDS_PAGE:
            yield from (f"{name}: {fault}" for fault in wrong_commands(text, options))
            yield from (f"{name}: {fault}" for fault in _wrong_targets(text, targets))


def unlisted_pages(root: Path) -> Iterator[str]:
    """The pages of `docs` that the list of all pages does not lead to."""
    pages = root / "docs/README.md"
    linked = _LINK.findall(pages.read_text()) if pages.is_file() else []
    for page in sorted((root / "docs").glob("*.md")):
        if pages.is_file() and page != pages and page.name not in linked:
            yield f"docs/README.md: {page.name} is not among the pages"


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
