"""`kvchat run --plain`: whole sentences, one after the other, and nothing else."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli.main import run
from app.cli.plain import PlainChat, converse, sentences
from app.sanitize import close_terminal
from engine.events import Event, Finished, FinishReason
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest, Message
from tests.app.cli.conftest import MAIN
from tests.app.cli.terminals import HOSTILE, harmful, shown_by
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient


def plain_chat(script: Script, *, system: str = "") -> tuple[PlainChat, ScriptedClient]:
    client = ScriptedClient(script)
    engine = BlockingClient(client)
    engine.load(CONFIGURATION)
    begin = (Message("system", system),) if system else ()
    return PlainChat(engine, GenerationRequest(messages=begin), lambda _: None), client


def test_a_text_comes_in_whole_sentences_and_no_letter_is_lost() -> None:
    pieces = ["One", " is it. Tw", "o! ", "Three\nfour", " five"]
    assert [*sentences(pieces)] == ["One is it. ", "Two! ", "Three\n", "four five"]
    assert [*sentences(())] == []


def test_a_chat_goes_on_with_all_that_was_reported(capsys: pytest.CaptureFixture[str]) -> None:
    chat, client = plain_chat(Script(("First. Second.", "Third.\n")), system="Be brief.")
    assert converse(chat, ["hello\n", "\n", "and then?\n", "/new\n", "again\n"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Assistant:", "First. Second."]
    assert "tokens" in lines[2]
    assert lines[3:5] == ["Assistant:", "Third."]
    assert "New chat." in lines
    roles = [[message.role for message in request.messages] for request in client.requests]
    assert roles == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system", "user"],
    ]


def test_nothing_moves_the_cursor_whatever_the_model_reports() -> None:
    chat, _ = plain_chat(Script((HOSTILE,)))
    shown = shown_by(lambda: (close_terminal(), converse(chat, ["hello"])))
    assert "Assistant:" in shown
    assert not harmful(shown)
    assert "\x1b" not in shown
    assert "\r" not in shown.replace("\r\n", "\n")


def test_a_refused_question_is_reported_and_the_next_one_is_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat, client = plain_chat(Script(("Yes.",), refuses=("Too long", "drop some")))
    assert converse(chat, ["hello"]) == 1
    assert "No reply: Too long: drop some" in capsys.readouterr().out
    client.script = Script(("Yes.",))
    assert converse(chat, ["/help", "/bogus", "/etc/hosts", "/quit", "never"]) == 0
    assert [m.content for m in client.requests[-1].messages] == ["/etc/hosts"]


@pytest.mark.parametrize("option", ["--raw", "--json", "--preload"])
def test_what_a_chat_by_lines_does_not_have_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--plain", option]) == 2  # as `kvchat run --plain`
    assert f"leave out {option}" in capsys.readouterr().err


@pytest.mark.model
def test_a_real_model_answers_line_by_line(starter_path: Path) -> None:
    command = [sys.executable, "-c", MAIN, "run", "--plain", "--model", str(starter_path)]
    done = subprocess.run(
        [*command, "--max-tokens", "12", "--temperature", "0", "--threads", "1"],
        input="Name a colour.\nAnother one.\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("Assistant:") == 2
    assert len(re.findall(r"^\(\d+ tokens, \d+ per second", done.stdout, re.MULTILINE)) == 2
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (FinishReason.LENGTH, "cut off at the token limit)"),
        (FinishReason.CONTEXT, "context is full; /new starts a new chat)"),
        (FinishReason.CANCELLED, "stopped)"),
        (FinishReason.END, "per second)"),
    ],
)
def test_a_reply_ends_with_its_counts_and_why_it_was_cut(
    reason: FinishReason, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chat, client = plain_chat(Script(("One. Two.",)))
    poll = client.poll

    def ended(timeout_s: float = 0.0) -> list[Event]:
        events = poll(timeout_s)
        return [replace(e, reason=reason) if isinstance(e, Finished) else e for e in events]

    client.poll = ended  # type: ignore[method-assign]
    assert converse(chat, ["/help\n", "hello\n", "/quit\n", "never asked\n"]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"\(\d+ tokens, .*{re.escape(words)}", printed)
    assert "/new" in printed.split("Assistant:")[0]
    assert len(client.requests) == 1
