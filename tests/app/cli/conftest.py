"""A home of its own for every command, and ways to run one."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import engine.process.client
from app import paths
from app.cli.main import main
from tests.support.fakes_client import ScriptedClient
from tests.support.gguf_files import header, llama_values, write

KVCHAT = str(Path(sys.executable).with_name("kvchat"))
MAIN = "from app.cli.main import main; main()"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    for name in ("KVCHAT_MODELS", "HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables of a command in a process of its own."""
    folders = {
        f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "STATE", "CACHE")
    }
    config = tmp_path / "CONFIG" / "kvchat" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[engine]\nn_threads = 1\n")  # other tests have the other cores
    return {**os.environ, "HOME": str(tmp_path), **folders}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    client = ScriptedClient()
    monkeypatch.setattr(engine.process.client, "WorkerClient", lambda **files: client)
    return client


@pytest.fixture
def model(tmp_path: Path) -> Path:
    presets = paths.presets_dir()
    presets.mkdir(parents=True)
    (presets / "terse.toml").write_text('name = "terse"\nsystem_prompt = "Be terse."\n')
    paths.settings_path().write_text(
        '[chat]\nsystem_prompt = "Be kind."\nmax_tokens = 77\ntemperature = 0.25\n'
    )
    return write(tmp_path / "model.gguf", header(llama_values()))


def kvchat(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in this process, which starts in no time, without a terminal."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = {
        "stdin": Path(os.devnull).open(encoding="utf-8"),  # noqa: SIM115  closed below
        "stdout": io.TextIOWrapper(out, "utf-8", write_through=True),
        "stderr": io.TextIOWrapper(err, "utf-8", write_through=True),
    }
    with (
        streams["stdin"],
        patch.multiple(sys, argv=["kvchat", *arguments], **streams),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    printed, message = out.getvalue().decode(), err.getvalue().decode()
    return subprocess.CompletedProcess(arguments, ended.value.code, printed, message)


def spawned(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def text_of(*words: object) -> str:
    """Standard output of a command that succeeds."""
    done = kvchat(*map(str, words))
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_of(*words: object) -> Any:
    """The JSON of a command that succeeds."""
    return json.loads(text_of(*words, "--json"))


def refusal(*words: object, code: int | None = None) -> str:
    """Standard error of a command that fails, with 1 or 2 or this exit code, and prints nothing."""
    done = kvchat(*map(str, words))
    assert done.returncode in ((1, 2) if code is None else (code,)), done.stderr
    assert done.stdout == ""
    return done.stderr


def run_process(
    arguments: list[str], environment: dict[str, str], command: str = "run", **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command of the installed kvchat in a process of its own."""
    return subprocess.run(
        [KVCHAT, command, *arguments],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        **options,
    )
