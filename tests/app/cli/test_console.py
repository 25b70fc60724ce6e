"""No text that a command prints can move the cursor of a terminal, retitle or recolour it."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from app import locations
from app.cli import console, main, run
from app.render.console import console as rich_console
from app.store.chats import ChatStore
from engine.configuration import SamplingSettings
from engine.requests import GenerationRequest
from tests.app.cli.conftest import MAIN
from tests.drafting_models import drafting_model
from tests.fakes_client import CONFIGURATION, Script, ScriptedClient

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x1b[8m\x9b31m\u202eb"
OWN_CODES = re.compile(r"\x1b\[[0-79;]*m|\r?\x1b\[K|\r\n")
"""What kvchat itself writes: styles other than the hidden one, and lines that go away."""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> str:
    """What a call prints where standard output and error are a terminal."""
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        call()
    return screen.getvalue()


def harmful(text: str) -> set[str]:
    left = OWN_CODES.sub("", text)
    return {c for c in left if (c < " " and c not in "\n\t") or "\x7f" <= c < "\xa0"} | (
        {"\u202e"} & {*left}
    )


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


@pytest.fixture
def hostile_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Chats, models, a preset and a script with hostile names."""
    folder = tmp_path / HOSTILE
    drafting_model(folder / f"{HOSTILE}.gguf", 4)
    (folder / f"broken {HOSTILE}.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    (folder / "serve.sh").write_text(f"llama-server -m 'm{HOSTILE}.gguf' --odd '{HOSTILE}'\n")
    monkeypatch.setenv("KVCHAT_MODELS", str(folder))
    with ChatStore(locations.database_path()) as store:
        chat = store.create_chat(
            title=HOSTILE, model_path=f"/{HOSTILE}.gguf", system_prompt=HOSTILE,
            sampling=SamplingSettings(),
        )  # fmt: skip
        store.add_message(chat.id, parent_id=None, role="user", content=f"x {HOSTILE}")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["chats", "list"], ["chats", "show", "1"], ["chats", "search", "x"],
        ["chats", "export", "1"], ["chats", "archive", "1"], ["chats", "rename", "1", HOSTILE],
        ["chats", "list", "--json"], ["chats", "show", HOSTILE + "?"], ["chats", "import", HOSTILE],
        ["chats", "delete", "1", "--yes"],
        ["models"], ["models", "--json"], ["models", "cards", HOSTILE],
        ["models", "catalogue", HOSTILE],
        ["where"], ["where", "--json"], ["cache"], ["cache", "drop", HOSTILE],
        ["plan", "FOLDER/MODEL"], ["plan", "FOLDER/MODEL", "--json"], ["plan", HOSTILE],
        ["plan", "qwen3-8b:" + HOSTILE], ["plan", "FOLDER/MODEL", "--card", HOSTILE],
        ["fit", "FOLDER/MODEL", "--device", "8GiB"], ["pairs", "FOLDER/MODEL"],
        ["export", "FOLDER/MODEL"], ["export", "FOLDER/MODEL", "--format", HOSTILE],
        ["import", "FOLDER/serve.sh"], ["import", "FOLDER/serve.sh", "--json"],
        ["import", HOSTILE], ["run", "x", "--model", HOSTILE], ["run", "x", "--preset", HOSTILE],
        ["compare", HOSTILE, "x"], ["bench", "--show", HOSTILE], ["where", HOSTILE],
        [HOSTILE + "?"],
    ],
)  # fmt: skip
def test_names_titles_paths_and_errors_are_harmless_on_a_terminal(
    arguments: list[str], hostile_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"FOLDER": str(hostile_home), "MODEL": f"{HOSTILE}.gguf"}
    told = [re.sub("FOLDER|MODEL", lambda match: words[match[0]], word) for word in arguments]
    shown = on_terminal(monkeypatch, lambda: main.run(told))
    assert shown.strip(), "it says something"
    assert not harmful(shown), repr(shown)


def test_a_real_terminal_gets_no_escape_from_a_title(hostile_home: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "chats", "show", "1"], stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    assert "␛]0;owned␇" in shown.decode()
    assert not harmful(shown.decode())


def replying(text: str) -> ScriptedClient:
    client = ScriptedClient(Script(replies=(text,)))
    client.load(CONFIGURATION)
    client.poll()
    client.generate(GenerationRequest(messages=()))
    return client


def test_a_reply_is_harmless_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    client = replying(f"one\ttwo\n{HOSTILE}")
    shown = on_terminal(monkeypatch, lambda: run._follow(client, shows_text=True))  # type: ignore[arg-type]  # a fake
    assert "one\ttwo\n" in shown, "lines and tabs stay"
    assert not harmful(shown)


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


def test_tables_and_notes_are_harmless_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_terminal(monkeypatch, lambda: rich_console().print(Text(HOSTILE, "bold"), HOSTILE))
    assert "owned" in shown
    assert not harmful(shown)
