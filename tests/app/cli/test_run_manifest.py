"""`kvchat run` writes what it did, does it again, and counts it."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import main
from app.manifests import made_with
from engine.configuration import PredictorName
from engine.events import Event
from engine.manifest import read_manifest, write_manifest
from tests.app.cli.conftest import run_process
from tests.support.fakes_client import ScriptedClient


def message(model: Path, path: Path, *arguments: str) -> int:
    return main.run(["run", "hello", "--model", str(model), "--write-manifest", str(path),
                     *arguments])  # fmt: skip


def test_a_written_run_asks_for_the_same_again(
    client: ScriptedClient, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    typed = ("--temperature", "0.5", "--top-k", "7", "--stop", "##", "--max-tokens", "30",
             "--kv", "q8_0", "--ctx", "512", "--predictor", "lookup")  # fmt: skip
    assert message(model, path, *typed) == 0
    assert main.run(["replay", str(path)]) == 0
    assert client.loads[0] == client.loads[1]
    assert client.requests[0] == client.requests[1]
    assert client.requests[0].seed is not None
    assert client.loads[0].speculation.predictor is PredictorName.OFF


def test_a_manifest_holds_the_reply_and_who_made_it(
    client: ScriptedClient, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    assert message(model, path) == 0
    manifest = read_manifest(path)
    assert manifest.made_with == made_with()
    assert manifest.prompts == ("hello",)
    assert manifest.system == "Be kind."
    assert len(manifest.replies[0].token_ids) > 0


def test_another_reply_than_the_recorded_one_is_reported_and_fails(
    client: ScriptedClient, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    assert message(model, path) == 0
    manifest = read_manifest(path)
    reply = manifest.replies[0]
    other = reply.model_copy(update={"token_ids": (*reply.token_ids[:-1], 1)})
    write_manifest(manifest.model_copy(update={"replies": (other,)}), path)
    assert main.run(["replay", str(path)]) == 1
    n = len(reply.token_ids)
    shown = capsys.readouterr()
    assert f"only up to token {n - 1} of {n}" in shown.err
    assert "another processor or GPU may round differently" in shown.err
    assert shown.out.count("Hello there.") == 2


def test_several_prompts_are_answered_in_turn(
    client: ScriptedClient, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    assert message(model, path) == 0
    manifest = read_manifest(path)
    update = {"prompts": ("one", "two", "three"), "replies": ()}
    write_manifest(manifest.model_copy(update=update), path)
    capsys.readouterr()
    again = tmp_path / "again.toml"
    assert main.run(["replay", str(path), "--json", "--write-manifest",
                     str(again)]) == 0  # fmt: skip
    assert [each.messages[-1].content for each in client.requests[1:]] == ["one", "two", "three"]
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert len(read_manifest(again).replies) == 3


def test_a_model_that_was_replaced_is_refused_before_anything_is_loaded(
    client: ScriptedClient, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    assert message(model, path) == 0
    model.write_bytes(model.read_bytes() + b"\0" * 32)
    assert main.run(["replay", str(path)]) == 1
    shown = capsys.readouterr().err
    assert "The manifest cannot be run: the model file differs" in shown
    assert str(model) in shown
    assert len(client.loads) == 1


@pytest.mark.parametrize("where", ["beside", "option"])
def test_a_model_that_moved_is_found_beside_the_manifest_or_where_the_option_reports(
    where: str, client: ScriptedClient, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "sent" / "run.toml"
    assert message(model, path) == 0
    moved = path.parent / (model.name if where == "beside" else "other.gguf")
    moved.write_bytes(model.read_bytes())
    model.unlink()
    options = [] if where == "beside" else ["--model", str(moved)]
    assert main.run(["replay", str(path), *options]) == 0
    assert client.loads[1].model_path == moved


def test_a_stopped_run_is_not_written(
    client: ScriptedClient,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    poll = client.poll

    def interrupted(timeout_s: float = 0.0) -> list[Event]:
        if client.is_busy and not client.n_stops:
            raise KeyboardInterrupt
        return poll(timeout_s)

    monkeypatch.setattr(client, "poll", interrupted)
    path = tmp_path / "run.toml"
    assert message(model, path) == 130
    assert client.n_stops == 1
    assert not path.exists()
    assert "was stopped" in capsys.readouterr().err


def test_metrics_are_written_whether_the_reply_comes_or_fails(
    client: ScriptedClient, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kvchat.prom"
    asked = ["run", "hello", "--model", str(model), "--metrics", str(path)]
    assert main.run(asked) == 0
    text = path.read_text()
    assert 'kvchat_replies_total{reason="end"} 1\n' in text
    assert "kvchat_buffer_bytes{" in text
    client.script = replace(client.script, fails_after=2)
    assert main.run(asked) == 1
    failed = path.read_text()
    assert "kvchat_replies_total{" not in failed
    assert "kvchat_failures_total 1" in failed
    client.script = replace(client.script, fails_after=None, dies_after=2)
    assert main.run(asked) == 1
    assert "kvchat_engine_stops_total 1" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("predictor", ["suffix", "draft"])
def test_a_real_run_comes_out_again_token_for_token(
    predictor: str, starter_path: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    def again() -> "subprocess.CompletedProcess[str]":
        return run_process([str(path)], environment, "replay")

    path = tmp_path / "run.toml"
    typed = ["Once upon a time there was a fox who thought", "--raw", "--model", str(starter_path)]
    typed += ["--draft", str(starter_path)] if predictor == "draft" else []
    typed += ["--predictor", predictor, "--temperature", "0.8", "--max-tokens", "48"]
    first = run_process([*typed, "--write-manifest", str(path)], environment)
    assert first.returncode == 0, first.stderr
    assert len(read_manifest(path).replies[0].token_ids) > 8
    for _ in range(2):  # costs that are known now must not change how it is computed
        done = again()
        assert (done.returncode, done.stdout) == (0, first.stdout), done.stderr


def test_a_file_that_cannot_be_written_is_named(
    client: ScriptedClient, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.write_text("a file, no folder")
    assert message(model, closed / "run.toml") == 1
    assert "The manifest cannot be written" in capsys.readouterr().err
    assert main.run(["run", "hello", "--model", str(model), "--metrics", str(closed / "m")]) == 1
    assert str(closed) in capsys.readouterr().err


def test_a_manifest_that_was_edited_is_named_as_the_cause(
    client: ScriptedClient, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    assert message(model, path) == 0
    manifest = read_manifest(path)
    reply = manifest.replies[0]
    other = reply.model_copy(update={"token_ids": (*reply.token_ids[:-1], 1)})
    edited = {"replies": (other,), "prompts": ("something else",)}
    write_manifest(manifest.model_copy(update=edited), path)
    assert main.run(["replay", str(path)]) == 1
    assert "the manifest was edited after it was recorded" in capsys.readouterr().err
