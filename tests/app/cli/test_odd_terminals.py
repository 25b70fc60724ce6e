"""The program itself on terminals that nobody would choose."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.support.waiting import PATIENCE_S

KVCHAT = f"{sys.executable} -c 'from app.cli.main import main; main()'"


class Terminal:
    """A pseudo-terminal with kvchat in it."""

    def __init__(self, home: Path, *, rows: int = 24, term: str = "xterm", more: str = "") -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        env = {**os.environ, "HOME": str(home), "TERM": term}
        for kind in ("DATA", "CONFIG", "STATE", "CACHE"):
            env[f"XDG_{kind}_HOME"] = str(home / kind.lower())
        self.process = subprocess.Popen(
            ["sh", "-c", f"exec {KVCHAT} {more}"], stdin=theirs, stdout=theirs, stderr=theirs,
            env=env, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = b""

    def read(self, seconds: float) -> int:
        """How many bytes come in this time, or until it ends."""
        n_before, until = len(self.shown), time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._ours], [], [], left)[0]:
                break
            try:
                self.shown += os.read(self._ours, 1 << 16)
            except OSError:
                break
        return len(self.shown) - n_before

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def ended(self) -> int:
        until = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < until:
            self.read(0.05)
        self.read(0.05)
        if self.process.poll() is None:
            self.process.kill()
        os.close(self._ours)
        return self.process.wait()


def test_a_terminal_of_no_rows_is_painted_once_and_left_with_its_key(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, rows=0)
    until = time.monotonic() + PATIENCE_S
    while b"model" not in terminal.shown and time.monotonic() < until:
        terminal.read(0.2)
    assert b"model" in terminal.shown
    rates = [terminal.read(0.3) for _ in range(5)]
    assert min(rates) < 10_000, "it paints without end"
    terminal.press(b"\x11")
    assert terminal.ended() == 0


def test_a_terminal_that_moves_no_cursor_is_refused_and_the_way_named(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, term="dumb")
    assert terminal.ended() == 1
    assert b"kvchat run --plain" in terminal.shown


def test_with_standard_error_closed_the_reason_is_said_all_the_same(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, more="2>&-")
    assert terminal.ended() == 1
    assert b"standard error is not one" in terminal.shown
    assert b"Traceback" not in terminal.shown
