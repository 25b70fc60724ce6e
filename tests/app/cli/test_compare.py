"""`kvchat compare` as a user meets it."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from engine.events import Event
from engine.requests import GenerationRequest
from tests.app.cli.conftest import kvchat, spawned
from tests.support.fakes_client import Script, ScriptedClient

PROMPT = "Write this line three times: the quick brown fox jumps over the lazy dog"


@pytest.mark.model
def test_two_arms_answer_and_the_verdict_follows(starter_path: Path) -> None:
    arguments = ["compare", str(starter_path), PROMPT, "--blocks", "1"]
    arguments += ["--max-tokens", "12", "--threads", "1"]
    done = spawned(*arguments, "--temperature", "0", "--second", "lookup:fixed:2", "--text")
    assert done.returncode == 0, done.stderr
    assert "lookup:fixed:2" in done.stdout
    assert "identical: every" in done.stdout


@pytest.mark.model
@pytest.mark.slow
def test_json_has_every_reply_and_the_verdict(starter_path: Path) -> None:
    arguments = ["compare", str(starter_path), PROMPT, "--blocks", "2"]
    arguments += ["--max-tokens", "8", "--threads", "1"]
    done = spawned(*arguments, "--temperature", "0", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seed"] == 3
    assert [len(block) for block in found["blocks"]] == [4, 4]
    assert found["gain"]["median"] > 0
    assert (found["gain"]["n_blocks"], found["is_settled"]) == (2, False)
    first, second = found["blocks"][0][:2]
    assert (first["text"] == second["text"]) == (found["divergences"][0] is None)
    assert first["stats"]["n_drafted"] == 0


def test_an_unknown_arm_is_refused_before_a_model_is_loaded(starter_path: Path) -> None:
    done = kvchat("compare", str(starter_path), "Hello", "--second", "lookop")
    assert done.returncode == 1
    assert "there is no predictor 'lookop': use one of off, lookup" in done.stderr


def test_whole_blocks_are_printed_where_the_engine_ends(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ScriptedClient(Script(("one two three four five six",)))
    monkeypatch.setattr("engine.process.client.WorkerClient", lambda **_: client)
    generate = client.generate

    def generate_nine(request: GenerationRequest, reply_id: int = 0) -> None:
        dies_after = 3 if len(client.requests) == 8 else None
        client.script = replace(client.script, dies_after=dies_after)
        generate(request, reply_id)

    monkeypatch.setattr(client, "generate", generate_nine)
    done = kvchat(
        "compare", str(starter_path), "Hello", "--second", "lookup", "--blocks", "5", "--json"
    )
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["blocks"]) == 2
    assert "signal 9" in done.stderr


def test_a_second_ctrl_c_does_not_wait_for_the_engine(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ScriptedClient(Script(("one",)))
    client.is_deaf = True
    monkeypatch.setattr("engine.process.client.WorkerClient", lambda **_: client)
    poll, n_polls = client.poll, count(1)

    def interrupted(wait_s: float = 0.0) -> list[Event]:
        if not client.requests:
            return poll(wait_s)
        assert next(n_polls) <= 2
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "poll", interrupted)
    assert kvchat("compare", str(starter_path), "Hello", "--second", "lookup").returncode == 130
