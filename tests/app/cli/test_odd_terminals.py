"""The program itself on terminals that nobody would choose."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.app.cli.conftest import MAIN
from tests.conftest import ROOT
from tests.support.terminal import Terminal
from tests.support.waiting import PATIENCE_S, wait_until

WITHOUT_ERRORS = f"""
import os, sys
os.close(2)
os.execv(sys.executable, [sys.executable, "-c", {MAIN!r}])
"""


@contextmanager
def opened(
    home: Path, code: str = MAIN, *, n_rows: int = 24, term: str = "xterm"
) -> Iterator[Terminal]:
    """Run kvchat in a pseudo-terminal."""
    kinds = ("DATA", "CONFIG", "STATE", "CACHE")
    environment = {
        **os.environ,
        **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in kinds},
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "TERM": term,
    }
    terminal = Terminal(code, (), environment, home, (80, n_rows))
    yield terminal
    terminal.close()


def test_a_terminal_of_no_rows_is_painted_once_and_left_with_its_key(tmp_path: Path) -> None:
    with opened(tmp_path, n_rows=0) as terminal:

        def n_painted() -> int:
            n_before = len(terminal.tail)
            terminal.read(0.3)
            return len(terminal.tail) - n_before

        wait_until(lambda: n_painted() and b"model" in terminal.tail)
        assert min(n_painted() for _ in range(5)) < 10_000, "it paints without end"
        terminal.write(b"\x11")
        assert terminal.wait(PATIENCE_S) == 0


def test_a_terminal_that_moves_no_cursor_is_refused_and_the_way_named(tmp_path: Path) -> None:
    with opened(tmp_path, term="dumb") as terminal:
        assert terminal.wait(PATIENCE_S) == 1
        assert b"kvchat run --plain" in terminal.tail


def test_with_standard_error_closed_the_reason_is_reported_all_the_same(tmp_path: Path) -> None:
    with opened(tmp_path, WITHOUT_ERRORS) as terminal:
        assert terminal.wait(PATIENCE_S) == 1
        assert b"standard error is not a terminal" in terminal.tail
        assert b"Traceback" not in terminal.tail
