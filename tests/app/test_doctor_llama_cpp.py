"""The trial decode on a real model, and on engines that crash in every way."""

import sys
from pathlib import Path

import pytest

from app import doctor as llama_cpp
from app.doctor import check_build, check_trial

CRASH = "import os, signal; os.kill(os.getpid(), signal.{})"

CRASH_WITH_EXTRA_BUFFERS = """
import os, signal, sys
from multiprocessing.connection import Connection
from engine.events import Loaded
connection = Connection(int(sys.argv[1]))
configuration = connection.recv().configuration
if configuration.use_extra_buffers:
    os.kill(os.getpid(), signal.SIGSEGV)
connection.send((Loaded("m", "Q4_1", 1, 256, 256, True, True, "v", configuration, ("off",)),))
connection.recv()
"""


def test_a_sound_build_reports_its_version_and_features() -> None:
    check, facts = check_build()
    assert check.status == "ok"
    assert facts.version in check.detail
    assert "CPU" in facts.features


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (CRASH.format("SIGILL"), "SIGILL"),
        ("raise ImportError('libllama.so: cannot open')", "libllama.so: cannot open"),
    ],
)
def test_a_build_that_cannot_be_loaded_is_a_failure_with_a_way_out(code: str, part: str) -> None:
    check, facts = check_build((sys.executable, "-c", code))
    assert (check.status, facts) == ("fail", None)
    assert part in check.detail
    assert "make llama" in (check.advice or "")


def test_a_sound_build_decodes_a_real_model(starter_path: Path, tmp_path: Path) -> None:
    check = check_trial(starter_path, tmp_path / "log")
    assert check.status == "ok"
    assert "loaded and decoded" in check.detail


def test_an_engine_that_always_crashes_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    command = (sys.executable, "-c", CRASH.format("SIGABRT"))
    check = check_trial(tmp_path / "m.gguf", tmp_path / "log", command=command)
    assert check.status == "fail"
    assert "SIGABRT" in check.detail
    assert "rebuild llama.cpp" in (check.advice or "")


def test_a_crash_that_extra_buffers_cause_reports_that_kvchat_goes_on_without(
    tmp_path: Path,
) -> None:
    command = (sys.executable, "-c", CRASH_WITH_EXTRA_BUFFERS)
    check = check_trial(tmp_path / "m.gguf", tmp_path / "log", command=command)
    assert check.status == "fail"
    assert "SIGSEGV" in check.detail
    assert "without extra buffer types" in check.detail
    assert check.advice is not None


def test_a_silent_engine_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "TRIAL_TIMEOUT_S", 0.3)
    monkeypatch.setattr("engine.process.client.SAVE_LIMIT_S", 0.3)
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    check = check_trial(tmp_path / "m.gguf", tmp_path / "log", command=command)
    assert check.status == "fail"
    assert "did not answer within" in check.detail


def test_without_a_model_nothing_is_tried_and_that_is_reported(tmp_path: Path) -> None:
    check = check_trial(None, tmp_path / "log")
    assert check.status == "note"
    assert "install-starter" in (check.advice or "")
