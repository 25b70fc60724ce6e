"""`kvchat export`: the command line of llama-server."""

import json
import shlex
from pathlib import Path

import pytest

from app import paths
from app.cli.main import run


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
    assert "the controller is auto" in shown.err


def test_json_has_arguments_command_and_remarks(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(starter_path), "--preset", "creative", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert shlex.split(found["command"]) == [found["program"], *found["args"]]
    assert found["remarks"] == []


def test_what_torch_alone_has_stays_behind_and_is_told(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["export", str(starter_path), "--backend", "torch", "--kv-cache", "kivi4"]
    assert run([*asked, "--type-k", "q8_0"]) == 0
    shown = capsys.readouterr()
    assert "backend is torch, which is kvchat's own" in shown.err
    assert "kv_cache kivi4 stay behind" in shown.err
    assert "keys of q8_0 and values of f16" in shown.err
    assert "kivi4" not in shown.out
    assert run(["export", str(starter_path)]) == 0
    assert "torch" not in capsys.readouterr().err


def test_a_path_with_spaces_survives_the_shell(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my model's file.gguf"
    path.symlink_to(starter_path)
    assert run(["export", str(path), "--preset", "balanced"]) == 0
    args = shlex.split(capsys.readouterr().out)
    assert args[args.index("--model") + 1] == str(path)


def test_a_preset_without_a_model_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--preset", "balanced"]) == 1
    assert "names no model" in capsys.readouterr().err


def test_a_preset_that_names_its_model_needs_no_other(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = paths.presets_dir()
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(f'name = "mine"\nmodel = "{starter_path}"\nn_ctx = 1024\n')
    assert run(["export", "--preset", "mine"]) == 0
    assert "--ctx-size 1024" in capsys.readouterr().out


def test_rules_become_numbers_for_the_gpu_that_is_named(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = []
    for vram in ("1GiB", "24GiB"):
        assert (
            run(["export", str(starter_path), "--preset", "balanced", "--vram", vram, "--json"])
            == 0
        )
        args = json.loads(capsys.readouterr().out)["args"]
        sizes.append((args[args.index("--ctx-size") + 1], args[args.index("--n-gpu-layers") + 1]))
    assert sizes[1] == ("8192", "all")
    assert sizes[0] != sizes[1]


def test_what_does_not_fit_is_exported_and_said(
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


def test_a_model_on_the_command_line_stands_over_the_presets_own(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text('name = "mine"\nmodel = "somewhere-else.gguf"\n')
    assert run(["export", str(starter_path), "--preset", str(preset)]) == 0
    assert str(starter_path) in capsys.readouterr().out
