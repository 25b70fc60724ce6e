"""`kvchat compare` as a user meets it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.requests import GenerationRequest
from tests.app.cli.conftest import kvchat, spawned
from tests.support.fakes_client import Script, ScriptedClient

PROMPT = "Write this line three times: the quick brown fox jumps over the lazy dog"


@pytest.mark.model
def test_two_sides_answer_and_the_verdict_stands_below(starter_path: Path) -> None:
    arguments = ["compare", str(starter_path), PROMPT, "--pairs", "1"]
    arguments += ["--max-tokens", "12", "--threads", "1"]
    done = spawned(*arguments, "--temperature", "0", "--second", "lookup:fixed:2", "--text")
    assert done.returncode == 0, done.stderr
    assert "lookup · fixed 2" in done.stdout
    assert "identical, all" in done.stdout
    assert "pair 1 of 1, plain" in done.stderr


@pytest.mark.model
@pytest.mark.slow
def test_json_has_both_replies_and_the_verdict(starter_path: Path) -> None:
    arguments = ["compare", str(starter_path), PROMPT, "--pairs", "2"]
    arguments += ["--max-tokens", "8", "--threads", "1"]
    done = spawned(*arguments, "--temperature", "0", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["seed"] == 3
    assert len(told["pairs"]) == 2
    assert told["speed"]["median"] > 0
    assert len(told["speed"]["ratios"]) == 2
    first, second = (told["pairs"][0][name] for name in ("first", "second"))
    assert (first["text"] == second["text"]) == (told["pairs"][0]["divergence"] is None)
    assert first["stats"]["n_drafted"] == 0


def test_a_wrong_side_is_told_before_a_model_is_loaded(starter_path: Path) -> None:
    done = kvchat("compare", str(starter_path), "Hello", "--second", "lookop")
    assert done.returncode == 1
    assert "there is no predictor 'lookop': use one of off, lookup" in done.stderr


def test_whole_pairs_are_printed_where_the_engine_ends(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ScriptedClient(Script(("one two three four five six",)))
    monkeypatch.setattr("engine.process.client.WorkerClient", lambda **_: client)
    generate = client.generate

    def generate_four(request: GenerationRequest, reply_id: int = 0) -> None:
        dies_after = 3 if len(client.requests) == 4 else None
        client.script = replace(client.script, dies_after=dies_after)
        generate(request, reply_id)

    monkeypatch.setattr(client, "generate", generate_four)
    done = kvchat(
        "compare", str(starter_path), "Hello", "--second", "lookup", "--pairs", "5", "--json"
    )
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["pairs"]) == 2
    assert "signal 9" in done.stderr
