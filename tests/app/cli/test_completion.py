"""Completions of a command line in a shell."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from app import paths
from app.cli.main import COMMANDS
from tests.app.cli.conftest import kvchat


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of some words."""
    asked = {"_KVCHAT_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words)),
             "COMP_WORDS": " ".join(("kvchat", *words))}  # fmt: skip
    with patch.dict(os.environ, asked):
        done = kvchat()
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split(",", 1)[1] for line in done.stdout.splitlines() if line]


def test_commands_complete_by_their_first_letters() -> None:
    assert completed("pl") == ["plan"]
    assert set(COMMANDS) <= set(completed(""))


def test_options_and_choices_complete_after_a_command() -> None:
    assert "--type-k" in completed("plan", "--type")
    assert set(completed("run", "--controller", "")) == {"fixed", "auto"}
    assert completed("--the") == ["--theme"]
    assert completed("run", "--pl") == ["--plain"]


def test_themes_presets_and_models_complete_by_name(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    paths.themes_dir().mkdir(parents=True)
    (paths.themes_dir() / "mine.toml").touch()
    assert completed("--theme", "m") == ["mine"]
    assert "kvchat-light" in completed("--theme", "kvchat-l")
    assert "long-context" in completed("run", "--preset", "long")
    assert starter_path.stem in completed("run", "--model", "smol")
    assert starter_path.stem in completed("Smol")
    assert completed("nothing-like-this") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_each_shell_asks_kvchat(shell: str) -> None:
    done = kvchat("completion", shell)
    assert done.returncode == 0
    assert "_KVCHAT_COMPLETE" in done.stdout
    assert f"{shell}_complete" in done.stdout


def test_another_shell_is_refused_with_those_that_there_are() -> None:
    done = kvchat("completion", "tcsh")
    assert done.returncode == 2
    assert "bash" in done.stderr
