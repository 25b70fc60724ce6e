"""What a pipe gets of a text, and that it loses nothing."""

import io
import json
import os
import sys

import pytest
from rich.table import Table
from rich.text import Text

from app.cli import console, run
from app.render.console import console as rich_console
from engine.requests import GenerationRequest
from tests.app.cli.terminals import HOSTILE, harmful
from tests.fakes_client import CONFIGURATION, Script, ScriptedClient


def replying(text: str) -> ScriptedClient:
    client = ScriptedClient(Script(replies=(text,)))
    client.load(CONFIGURATION)
    client.poll()
    client.generate(GenerationRequest(messages=()))
    return client


def test_a_reply_goes_into_a_pipe_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    run._follow(replying(HOSTILE), shows_text=True)  # type: ignore[arg-type]  # a fake
    assert capsys.readouterr().out == HOSTILE + "\n"


def test_json_is_harmless_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"text": HOSTILE, "other": "naïve 日本"})
    shown = capsys.readouterr().out
    assert not harmful(shown)
    assert "naïve 日本" in shown
    assert json.loads(shown)["text"] == HOSTILE


def test_a_name_that_is_no_text_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    console.say(os.fsdecode(b"caf\xe9.gguf"))
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
