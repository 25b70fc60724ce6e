"""Standard input that has no end."""

import io
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from app import console

MAIN = "from app.cli.main import main; main()"
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); "


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        pytest.param(["run", "--tokens", "-"], marks=pytest.mark.slow),
        pytest.param(["compare", "none.gguf"], marks=pytest.mark.slow),
        pytest.param(["chats", "import", "-"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_endless_input_is_refused_before_it_fills_the_memory(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KVCHAT_MODELS", str(tmp_path))
    with Path("/dev/zero").open("rb") as zeros:
        done = subprocess.run(
            [sys.executable, "-c", LIMIT + MAIN, *arguments],
            stdin=zeros, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert re.search("more than|larger than", done.stderr), done.stderr


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MAX_INPUT", 4)
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\nabcdef"))
    assert console.read_line() == "abc\n"
    with pytest.raises(click.UsageError, match="more than 4 characters"):
        console.read_line()
