import os
import shutil
from pathlib import Path

import pytest

from app import doctor as checks
from app import paths
from app.doctor import Check, check_characters, check_colors, check_folders, check_gpu
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.library import ModelEntry

pytestmark = pytest.mark.usefixtures("home")


GOOD = ModelEntry(
    path=Path("/m/good.gguf"),
    name="good",
    architecture="llama",
    file_type="Q4_1",
    n_ctx_train=8192,
    nbytes=1,
)
BAD = ModelEntry(path=Path("/m/bad.gguf"), name="bad", nbytes=1, problem="it is truncated")


def found(*entries: ModelEntry) -> dict[str, Check]:
    return {check.name: check for check in check_folders(entries)}


def test_a_folder_that_cannot_be_written_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = paths.state_dir()
    closed.mkdir(parents=True)
    monkeypatch.setattr(checks.os, "access", lambda folder, _: folder != closed)
    check = found(GOOD)["folders"]
    assert check.status == "fail"
    assert f"logs in {closed}" in check.detail
    assert "XDG_STATE_HOME" in (check.advice or "")


@pytest.mark.parametrize(
    ("free", "status"), [(1 << 20, "fail"), (100 << 20, "note"), (2 << 30, "ok")]
)
def test_disk_space_is_rated(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage)
    assert found(GOOD)["disk"].status == status


def test_missing_and_broken_models_are_named() -> None:
    assert "install-starter" in (found()["models"].advice or "")
    check = found(GOOD, BAD)["models"]
    assert check.status == "note"
    assert "1 found, broken: bad (it is truncated)" in check.detail


@pytest.mark.parametrize(
    ("environment", "status", "part"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "ok", "16 million"),
        ({"TERM": "tmux-256color"}, "ok", "256"),
        ({"TERM": "vt100"}, "note", "few colours"),
        ({}, "note", "not set"),
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, "note", "shades of grey"),
        ({"NO_COLOR": "", "COLORTERM": "truecolor"}, "ok", "16 million"),
    ],
)
def test_colours_are_read_from_the_environment(
    environment: dict[str, str], status: str, part: str
) -> None:
    check = check_colors(environment)
    assert check.status == status
    assert part in check.detail


def test_a_terminal_without_utf_8_is_a_failure() -> None:
    assert check_characters("UTF-8").status == "ok"
    check = check_characters("ascii")
    assert check.status == "fail"
    assert "C.UTF-8" in (check.advice or "")


def test_a_gpu_that_llama_cpp_cannot_use_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_nvidia_gpus", lambda: [Device("H200", "gpu", 139 * GIB, GIB)])
    check = check_gpu(has_gpu_build=False)
    assert check.status == "note"
    assert "H200 (1 GiB of 139 GiB free)" in check.detail
    assert "-DGGML_CUDA=ON" in (check.advice or "")
    assert check_gpu(has_gpu_build=True).status == "ok"
    assert check_gpu(has_gpu_build=None).status == "ok"
    monkeypatch.setattr(checks, "find_nvidia_gpus", list)
    assert "llama.cpp uses the CPU" in check_gpu(has_gpu_build=False).detail


def test_settings_and_chats_that_cannot_be_read_are_named() -> None:
    assert (found(GOOD)["settings"].status, found(GOOD)["chats"].detail) == ("ok", "no chats yet")
    assert "no settings file" in found(GOOD)["settings"].detail
    for path in (paths.settings_path(), paths.database_path()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[chat]\nno_such = 1\n" + "# and more\n" * 100)
    checked = found(GOOD)
    assert (checked["settings"].status, checked["chats"].status) == ("note", "fail")
    assert "no_such" in checked["settings"].detail
    assert "not a database" in checked["chats"].detail


@pytest.mark.parametrize(("size", "status"), [((80, 24), "ok"), ((40, 24), "note")])
def test_a_small_terminal_is_noted(
    size: tuple[int, int], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert "kvchat run" in str(next(checks.check_terminal()).advice)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True)
    monkeypatch.setattr(checks.shutil, "get_terminal_size", lambda *_: os.terminal_size(size))
    check = next(checks.check_terminal())
    assert (check.status, f"{size[0]} columns" in check.detail) == (status, True)


def test_llama_cpp_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "BUILD_TIMEOUT_S", 0.05)
    check, facts = checks.check_build(("sleep", "60"))
    assert (check.status, facts) == ("fail", None)
    assert "within 0.05 s" in check.detail
