"""kvchat in a real terminal: stopped, continued, ended by a signal, and typed into fast."""

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest

from app.chat.attachments import without_marks
from app.store.chats import ChatStore
from tests.support.waiting import PATIENCE_S

APP = """
import sys
from pathlib import Path
from app.clipboard import read_harmless_pastes
from tests.support.fakes_app import make_app
read_harmless_pastes()
app, _ = make_app(Path(sys.argv[1]))
app.run()
app.controller.history.store.close()
sys.exit(app.return_code)
"""
ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """kvchat in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self._ours, self._theirs = pty.openpty()
        ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self._before = termios.tcgetattr(self._theirs)
        self.shown = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, "-c", APP, folder],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, "TERM": "xterm-256color", "HOME": str(folder)},
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  a terminal to control
        )

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def type(self, text: str) -> None:
        """Write as a terminal does that is typed into."""
        data = text.encode()
        while data:
            self._read()
            if select.select((), [self._ours], (), 0.05)[1]:
                data = data[os.write(self._ours, data[:4096]) :]

    def wait_for(self, text: bytes) -> None:
        """Read until a text was written since the last call."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown[-2000:]
            assert self.process.poll() is None, self.shown[-2000:]
            self._read()
        self.shown = self.shown[self.shown.rindex(text) + len(text) :]

    def wait(self) -> int:
        """Wait for its end."""
        deadline = time.monotonic() + PATIENCE_S
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, "it goes on"
            self._read()
        self._read()
        return code

    def is_as_before(self) -> bool:
        """Whether what a shell needs is as it was: lines, echo, screen, mouse."""
        end = bytes(self.shown)
        modes = (b"?1049", b"?1000", b"?1003", b"?2004")
        are_off = all(end.rfind(m + b"l") > end.rfind(m + b"h") for m in modes)
        return are_off and termios.tcgetattr(self._theirs)[:4] == self._before[:4]

    def _read(self) -> None:
        while select.select([self._ours], (), (), 0.02)[0]:
            self.shown += os.read(self._ours, 1 << 16)


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    shown = Terminal(folder)
    try:
        shown.wait_for(b"sk something")
        yield shown
    finally:
        shown.close()


def stop_and_continue(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("n_times", [1, 4])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_process_that_goes_on_after_a_stop_can_be_used_and_left(
    tmp_path: Path, n_times: int, *, is_stopped: bool
) -> None:
    with terminal(tmp_path) as shown:
        for _ in range(n_times):
            if is_stopped:
                stop_and_continue(shown.process.pid)
            else:
                os.kill(shown.process.pid, signal.SIGCONT)
        shown.wait_for(ENTERED)
        shown.wait_for(b"sk something")
        shown.type("still here")
        shown.wait_for(b"here")
        shown.shown.clear()
        shown.type("\x11")
        assert shown.wait() == 0
        assert shown.is_as_before()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was_and_saves(
    tmp_path: Path, number: int
) -> None:
    with terminal(tmp_path) as shown:
        shown.type("a draft")
        shown.wait_for(b"draft")
        os.kill(shown.process.pid, number)
        assert shown.wait() == 128 + number
        assert shown.is_as_before()
    with ChatStore(tmp_path / "chats.db") as store:
        assert store.drafts()[None].text == "a draft"


@pytest.mark.parametrize("text", ["a" * 20_000, "some words " * 2000, "漢字" * 5000])
def test_a_text_from_a_terminal_without_paste_marks_is_taken_at_once(
    tmp_path: Path, text: str
) -> None:
    with terminal(tmp_path) as shown:
        shown.type(text)
        shown.type("the end")
        shown.wait_for(b"the end")
        shown.type("\x11")
        assert shown.wait() == 0
    with ChatStore(tmp_path / "chats.db") as store:
        written = store.drafts()[None].text
    assert without_marks(written) == f"{text}the end"


def test_it_ends_with_a_terminal_that_does_not_control_it(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", APP, tmp_path],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "HOME": str(tmp_path)},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while ENTERED not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGHUP
