"""`kvchat run` as a user meets it, on the starter model."""

import json
import os
import signal
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from app.store.chats import ChatStore
from tests.app.cli.conftest import KVCHAT, kvchat, run_process

pytestmark = pytest.mark.model


def test_json_has_the_text_and_every_count(starter_path: Path, environment: dict[str, str]) -> None:
    arguments = ["Name three colours.", "--model", str(starter_path), "--temperature", "0"]
    done = run_process([*arguments, "--max-tokens", "24", "--json"], environment)
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    for key in (
        "n_prompt", "n_reused", "n_drafted", "n_verified", "n_examined", "n_accepted", "n_emitted",
        "first_token_s", "decode_tps",
    ):  # fmt: skip
        assert isinstance(reply[key], int | float), key
    assert reply["n_emitted"] == 24
    assert reply["prompt"]["n_prompt"] == reply["n_prompt"]
    assert reply["prompt"]["cause"] == "first prompt"
    assert reply["text"].strip()
    assert (reply["answer"], reply["thinking"]) == (reply["text"], None)
    assert (reply["predictor"], reply["controller"]) == ("suffix", "auto")
    plain = run_process([*arguments, "--max-tokens", "24"], environment)
    assert plain.stdout.strip() == reply["text"].strip()


def test_a_draft_model_drafts(starter_path: Path, environment: dict[str, str]) -> None:
    arguments = ["Hello.", "--model", str(starter_path), "--draft", str(starter_path)]
    arguments += ["--temperature", "0", "--max-tokens", "16", "--json"]
    # The rule finds out that this draft costs as much as its target: the option forces drafts.
    arguments += ["--controller", "fixed", "--n-draft", "2"]
    reply = json.loads(run_process(arguments, environment).stdout)
    assert reply["by_source"]["draft"]["n_accepted"] > 0
    assert reply["by_position"][0]["n_accepted"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--model", "no-such-model"], "no-such-model"),
        (["word " * 400, "--ctx", "256"], "the prompt has 4"),
        (["x", "--temperature", "-1"], "-1.0 is not in the range"),
        (["x", "--type-v", "q8_1"], "is not one of"),
        (["x", "--predictor", "draft"], "not available"),
        (["x", "--preset", "nothing"], "there is no preset 'nothing'"),
    ],
)
def test_bad_input_is_one_clear_message(
    starter_path: Path, environment: dict[str, str], arguments: list[str], message: str
) -> None:
    has_model = "--model" in arguments
    model = [] if has_model else ["--model", str(starter_path)]
    with patch.dict(os.environ, environment):
        done = kvchat("run", *arguments, *model, "--max-tokens", "2")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_interrupting_keeps_what_was_reported(
    starter_path: Path, environment: dict[str, str]
) -> None:
    command = [KVCHAT, "run", "1 2 3 4 5 6 7 8 9 10 11", "--raw", "--temperature", "0"]
    command += ["--model", str(starter_path), "--ctx", "8192"]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    first = process.stdout.read(12)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(20) == 130
    process.stdout.close()
    assert len(first + rest) < 2000, "it was stopped, and not at its end"
    assert len(first) == 12


def test_running_leaves_no_chat_after(
    starter_path: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run_process(["Hello.", "--model", str(starter_path), "--max-tokens", "2"], environment)
    with ChatStore(tmp_path / "DATA" / "kvchat" / "chats" / "chats.db") as store:
        assert store.list_chats() == []


@pytest.mark.slow
def test_a_draft_that_cannot_pay_is_warned_of_and_the_answer_comes(
    starter_path: Path, environment: dict[str, str]
) -> None:
    arguments = ["Hello.", "--model", str(starter_path), "--draft", str(starter_path)]
    done = run_process([*arguments, "--max-tokens", "4"], environment)
    assert done.returncode == 0
    assert "will not make SmolLM2-135M-Instruct.Q4_1.gguf faster" in done.stderr
    assert "the draft model reads as many bytes per token as the target" in done.stderr


def test_a_predictor_that_is_none_is_refused(environment: dict[str, str]) -> None:
    with patch.dict(os.environ, environment):
        done = kvchat("run", "Count.", "--predictor", "mtp")
    assert done.returncode == 2
    assert "a head on" in done.stderr


def test_lines_of_a_file_that_cannot_be_answered_are_named(
    starter_path: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    too_long = json.dumps({"prompt": "one two " * 5000})
    prompts.write_text('{"prompt": "One?"}\n' + '{"prompt": 7}\n' * 21 + too_long)
    files = [str(prompts), "--out", str(out), "--model", str(starter_path)]
    done = run_process([*files, "--max-tokens", "4"], environment, "batch")
    assert done.returncode == 1
    assert "line 2 has no reply: " in done.stderr
    assert "without a reply: 21" in done.stderr
    assert "line 23 has no reply: " in done.stderr
    assert out.read_text().count("\n") == 1
