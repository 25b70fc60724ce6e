"""`kvchat doctor` and `kvchat where`: the machine, and where files are."""

import json
import sys
from pathlib import Path

import pytest

from app import doctor as llama_cpp
from app.cli import main
from tests.app.cli.conftest import kvchat, refusal, spawned


def test_doctor_reports_every_area_and_ends_with_0(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    monkeypatch.setenv("PYTHONUTF8", "1")
    done = spawned("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert list(checks) == [
        "terminal", "colours", "characters", "folders", "disk", "settings", "chats", "models",
        "llama.cpp", "gpu", "trial decode",
    ]  # fmt: skip
    assert done.returncode == 0
    assert starter_path.stem in checks["trial decode"]["detail"]


def test_doctor_ends_with_1_when_llama_cpp_crashes_and_reports_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = "import os; os.abort()"
    check = llama_cpp.check_build((sys.executable, "-c", crash))
    monkeypatch.setattr("app.cli.doctor.check_build", lambda: check)
    assert main.run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  llama.cpp: llama.cpp cannot be loaded: llama.cpp aborted" in out
    assert "-> rebuild llama.cpp" in out


def test_doctor_names_a_model_that_is_not_there() -> None:
    assert "no-such-model" in refusal("doctor", "no-such-model")


def test_where_lists_places_and_scanned_folders(home: Path) -> None:
    (home / "models").mkdir()
    done = kvchat("where")
    assert done.returncode == 0
    for part in ("settings", "chats.db", "presets", "themes", "logs", "KVCHAT_MODELS"):
        assert part in done.stdout
    assert f"  {home / 'models'}\n" in done.stdout
    assert f"{home / '.lmstudio' / 'models'} (does not exist yet)" in done.stdout
    assert [path.name for path in home.iterdir()] == ["models"]
