"""What the full-screen application really writes, byte for byte."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.cli.terminals import harmful, shown_by

OF_TEXTUAL = re.compile(
    r"\x1b\[(?![58]m)[0-9;]*m|\x1b\[[<>=?]?[0-9;]*\$?[A-Za-ln-z]|\x1b\]22;[a-z]+\x07"
)
"""Styles other than hidden and blinking; cursor, modes and keyboard; the shape of the pointer."""


@pytest.mark.slow
def test_no_screen_retitles_the_terminal_or_lets_it_obey_a_text(
    tmp_path: Path, starter_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "COLUMNS": "120", "LINES": "36", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "tests.app.screens.hostile_app", tmp_path, starter_path]

    def call() -> None:
        done = subprocess.run(command, stdin=1, env={**os.environ, **home}, check=False)
        assert done.returncode == 0

    shown = shown_by(call)
    assert shown.count("owned") > 500, "every screen was painted"
    assert not harmful(OF_TEXTUAL.sub("", shown))
