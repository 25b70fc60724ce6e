"""Nothing that is printed in any way reaches a terminal but through the door."""

import io
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import click
import pytest
from rich.text import Text

from app.console import Progress, print_line, print_text
from app.sanitize import Door, close_terminal
from app.tables import console
from tests.app.cli.terminals import HOSTILE, harmful, shown_by
from tests.support.fakes_app import make_app


def rich_table() -> None:
    console().print(Text(HOSTILE, "bold"), HOSTILE, "[link=http://x]a[/link] [/oops] :smile:")


PRINTING = {
    "print": lambda: print(HOSTILE),  # noqa: T201  what a library may do
    "lines": lambda: sys.stdout.writelines([HOSTILE, HOSTILE]),
    "click": lambda: click.echo(click.style(HOSTILE, fg="red"), err=True),
    "bytes": lambda: click.echo(HOSTILE.encode()),
    "rich": rich_table,
    "line": lambda: print_line((HOSTILE, "bold red"), HOSTILE),
    "progress": lambda: Progress(count(0, 10).__next__).show(HOSTILE),
    "text": lambda: print_text([*HOSTILE]),
}


@pytest.mark.parametrize("way", PRINTING)
def test_whatever_prints_a_text_the_terminal_obeys_none_of_it(way: str) -> None:
    def call() -> None:
        close_terminal()
        PRINTING[way]()

    shown = shown_by(call)
    assert "owned" in shown
    assert not harmful(shown), repr(shown)


FAILING = f"""
import logging, warnings
from app.sanitize import close_terminal
close_terminal()
warnings.warn({HOSTILE!r})
logging.getLogger("other").warning({HOSTILE!r})
raise RuntimeError({HOSTILE!r})
"""


def test_warnings_logs_and_tracebacks_of_python_are_harmless() -> None:
    command = [sys.executable, "-c", FAILING]
    shown = shown_by(lambda: subprocess.run(command, check=False))
    for message in ("UserWarning: a␛]0;owned", "\na␛]0;owned", "RuntimeError: a␛]0;owned"):
        assert message in shown
    assert not harmful(shown), repr(shown)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_or_pipe_of_another_encoding_ends_nothing(encoding: str) -> None:
    code = f"from app.sanitize import close_terminal\nclose_terminal()\nprint({HOSTILE!r})"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}

    def call(**options: int) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run([sys.executable, "-c", code], check=True, env=environment, **options)  # type: ignore[call-overload, no-any-return]  # by name

    assert "\\u241b]0;owned" in shown_by(call)
    assert b"\\u2066f" in call(stdout=subprocess.PIPE).stdout


@pytest.mark.faults
def test_a_screen_that_fails_reports_it_harmlessly(tmp_path: Path) -> None:
    def call() -> None:
        close_terminal()
        application, _ = make_app(tmp_path)
        application.panic(Text(HOSTILE, "red"))
        application._print_error_renderables()

    shown = shown_by(call)
    assert "kvchat ended because its screen could not be drawn" in shown
    assert not harmful(shown), repr(shown)


def test_bytes_are_counted_as_they_were_given() -> None:
    shown = io.StringIO()
    assert Door(shown).buffer.write("\u00e4\x1b".encode()) == 3
    assert shown.getvalue() == "\u00e4\u241b"
