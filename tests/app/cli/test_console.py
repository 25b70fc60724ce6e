"""What commands print, into a pipe and on a terminal, and that it loses nothing."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from app import console
from app.console import Progress
from app.tables import HarmlessConsole, plain_table
from app.tables import console as rich_console
from engine.planning.models import ModelOption
from tests.app.cli.terminals import HOSTILE, harmful, shown_by


def test_json_is_harmless_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"text": HOSTILE, "other": "naïve 日本"})
    shown = capsys.readouterr().out
    assert not harmful(shown)
    assert "naïve 日本" in shown
    assert json.loads(shown)["text"] == HOSTILE


def test_records_and_paths_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json([ModelOption("a", "b", ()), Path("/m/a.gguf")])
    record, path = json.loads(capsys.readouterr().out)
    assert (record["key"], path) == ("a", "/m/a.gguf")
    with pytest.raises(TypeError, match="object values cannot"):
        console.print_json(object())


def test_a_note_during_progress_stands_on_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with console.Progress() as progress:
        progress.note("it is slow")
    assert capsys.readouterr().err == "kvchat: it is slow\n"


def test_a_name_that_is_no_text_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_line(os.fsdecode(b"caf\xe9.gguf"))
    console.print_json(os.fsdecode(b"caf\xe9.gguf"))
    assert capsys.readouterr().out.startswith("caf\ufffd.gguf\n")


def test_a_table_in_a_pipe_has_no_blanks_at_the_end_of_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table("name", "title", "")
    table.add_row("a", "long  title", "")
    table.add_row("longer", "", "x")
    table.add_row("", "", "")
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    rich_console().print(table)
    lines = pipe.getvalue().splitlines()
    assert any("long  title" in line for line in lines)
    assert [line.rstrip() for line in lines] == lines
    pipe.truncate(pipe.seek(0))
    rich_console().print(Text("one  \ntwo"), "three")
    assert pipe.getvalue() == "one\ntwo three\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_progress_is_a_line_every_ten_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Progress(clock) as progress:
        for clock.now in (0.1, 1.0, 2.0, 12.0):
            progress.show(f"at {clock.now:g} s", 0.5)
    assert capsys.readouterr().err == "50% · at 1 s\n50% · at 12 s\n"


def test_nothing_is_coloured_where_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> str:
        return shown_by(lambda: console.print_line("a", ("b", "bold red"), ("c", "green")))

    assert "\x1b[31m" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown()
    assert "abc" in shown()


def test_tables_are_plain_text_where_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> str:
        return shown_by(lambda: rich_console().print(plain_table(["id"], [["1"]])))

    assert "\x1b[1m" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown()


def test_progress_moves_no_cursor_where_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> None:
        clock = Clock()
        with Progress(clock) as progress:
            clock.now = 10.0
            progress.header("m.gguf", 3 << 20)

    assert "\x1b[K" in shown_by(read)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown_by(read)
    assert "\x1b" not in plain
    assert "m.gguf" in plain


def test_a_narrow_table_cuts_texts_and_no_numbers() -> None:
    text = io.StringIO()
    row = ["12", "2026-11-28", "12,345", "a title of many words " * 4]
    table = plain_table(
        ["id", "used", "tokens", "title"], [row], numbers=("id", "tokens"), folds=False
    )
    HarmlessConsole(text, 44).print(table)
    assert [line.split()[:3] for line in text.getvalue().splitlines()] == [
        ["id", "used", "tokens"],
        ["12", "2026-11-28", "12,345"],
    ]
