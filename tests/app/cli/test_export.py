"""`kvchat export`: the command line of llama-server."""

import json
import shlex
from pathlib import Path

import pytest

from app.cli.main import run
from engine.memory import hardware
from tests.app.cli.conftest import refusal


def test_the_command_is_one_quoted_line_and_remarks_are_comments(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(starter_path), "--preset", "long context"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1
    program, *args = shlex.split(shown.out)
    assert program == "llama-server"
    assert args[args.index("--model") + 1] == str(starter_path)
    assert args[args.index("--ctx-size") + 1] == "8192"
    assert all(line.startswith("# ") for line in shown.err.splitlines())
    assert "predictor is suffix" in shown.err
    assert "the preset has the controller auto" in shown.err


def test_what_torch_alone_has_stays_after_and_is_reported(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["export", str(starter_path), "--backend", "torch", "--set", "kv_cache=kivi4"]
    assert run([*asked, "--type-k", "q8_0"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("backend is torch") == shown.err.count("kv_cache is kivi4") == 1
    assert "kivi4" not in shown.out
    assert run(["export", str(starter_path)]) == 0
    assert "torch" not in capsys.readouterr().err


def test_a_preset_without_a_model_asks_for_one() -> None:
    assert "has no model" in refusal("export", "--preset", "balanced")


def test_what_does_not_fit_is_exported_and_reported(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "huge.toml"
    preset.write_text('name = "huge"\nn_ctx = 8192\ntype_k = "f32"\nn_gpu_layers = "all"\n')
    assert run(["export", str(starter_path), "--preset", str(preset), "--vram", "200MiB"]) == 0
    assert "# ✗ does not fit" in capsys.readouterr().err


def test_all_faults_of_a_preset_are_named_at_once(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "bad.toml"
    preset.write_text('name = "bad"\nn_ctxx = 1\ntype_k = "q9"\nn_slots = 0\n')
    assert run(["export", str(starter_path), "--preset", str(preset)]) == 1
    shown = capsys.readouterr().err
    assert all(part in shown for part in ("n_ctxx", "did you mean n_ctx", "type_k", "n_slots"))


def test_a_plan_for_torch_names_what_its_llama_server_command_lacks(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(starter_path), "--backend", "torch", "--set", "kv_cache=q4_0"]) == 0
    found = " ".join(capsys.readouterr().out.split())
    assert "kv_cache q4_0" in found
    assert "f16 keys" in found


def test_without_a_gpu_no_layers_are_on_one(
    starter_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "find_gpus", tuple)
    for command, machine in (("export", []), ("plan", []), ("export", ["--vram", "8GiB"])):
        assert run([command, str(starter_path), *machine, "--json"]) == 0
        args = json.loads(capsys.readouterr().out)["args"]
        assert args[args.index("--n-gpu-layers") + 1] == ("all" if machine else "0")
