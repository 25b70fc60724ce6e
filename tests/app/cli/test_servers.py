"""Commands at a server: what it is, one answer, several users."""

import json

import pytest

from app.cli.main import run
from tests.hostile_language_server import serving


def test_doctor_says_what_a_server_tells_and_what_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving("OpenAI") as server:
        assert run(["doctor", "--server", server.url]) == 0
    shown = capsys.readouterr().out
    assert "OpenAI" in shown
    assert "does not tell of drafts" in shown
    assert "trial reply: 7 tokens" in shown


def test_run_prints_the_reply_of_a_server(capfd: pytest.CaptureFixture[str]) -> None:
    with serving("vLLM") as server:
        assert run(["run", "--server", server.url, "Hello"]) == 0
    assert capfd.readouterr().out == "The cat sat on the mat.\n"


def test_what_a_server_was_started_with_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--server", "http://127.0.0.1:9", "--ctx", "4k", "Hello"]) == 1
    assert "--ctx is for models here" in capsys.readouterr().err
    assert run(["run", "--server", "http://me:pass@host", "Hello"]) == 2


def test_load_counts_every_reply_of_every_user(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("llama-server") as server:
        run(["load", server.url, "--users", "1,3", "--turns", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [len(each["turns"]) for each in found["results"]] == [2, 6]
    assert all(not turn["fault"] for each in found["results"] for turn in each["turns"])
