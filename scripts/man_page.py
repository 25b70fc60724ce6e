"""Make the man page from the help of the commands.

As the build hook that `pyproject.toml` names, this file adds the page to the wheel.
    python scripts/man_page.py        print the page
"""

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # only a build has hatchling
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 80
PLACE = "share/man/man1/kvchat.1"


class ManPageHook(BuildHookInterface):  # type: ignore[type-arg,misc,unused-ignore]
    """Adds the man page to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the page to a wheel, but not to an editable installation."""
        if version != "standard":
            return
        sys.path.insert(0, str(ROOT))
        self._folder = tempfile.TemporaryDirectory(prefix="kvchat-man-")
        path = Path(self._folder.name) / "kvchat.1"
        path.write_text(man_page())
        build_data["shared_data"][str(path)] = PLACE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  hatchling's signature
        """Remove the page's temporary folder."""
        if version == "standard":
            self._folder.cleanup()


def every_command() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with the words that call it and a context of a fixed width."""
    from app.cli.main import cli

    yield from _commands(cli, None, "kvchat")


def _commands(
    command: click.Command, parent: click.Context | None, name: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    names = None if parent else ["--help", "-h"]
    context = click.Context(command, parent, name, terminal_width=WIDTH, help_option_names=names)
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from _commands(inner, context, each)


def man_page() -> str:
    """The man page in the format of man(7)."""
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
        params = command.get_params(context)
        if words == "kvchat":
            lines += [".SH DESCRIPTION", *_meaning(command), ".SH OPTIONS"]
            lines += [*_options((*chat.params, *params), context), ".SH COMMANDS"]
        else:
            lines += [f'.SS "{_roff(words)}"', *_usage(command, context)]
            lines += [*_meaning(command), *_options(params, context)]
    names = ", ".join(files_and_folders())
    lines += [".SH FILES", f"Folders of {names}:", '.BR "kvchat where" .']
    lines += [".SH ENVIRONMENT", *_entries(ENVIRONMENT)]
    return "\n".join(lines) + "\n"


ENVIRONMENT = (
    ("KVCHAT_MODELS", "Folders that are searched for models before all others, separated by :."),
    ("NO_COLOR", "Where it is set, nothing is coloured, on the screen and in what commands print."),
    ("TEXTUAL_ANIMATIONS", "full, basic or none: how much moves on the screen."),
    ("XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME, XDG_CACHE_HOME", "Folders of the files."),
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
    """Escape a text for troff, so that no line of it is a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(
        rf"\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n")
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(man_page(), end="")
