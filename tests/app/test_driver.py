"""kvchat in a real terminal: stopped, continued, ended by a signal, and typed into fast."""

import os
import pty
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from app.chat.attachments import without_marks
from app.store.chats import ChatStore
from tests.conftest import ROOT
from tests.support.terminal import Terminal
from tests.support.waiting import PATIENCE_S, wait_until

APP = """
import sys
from pathlib import Path
from app.clipboard import read_harmless_pastes
from tests.support.fakes_app import make_app
read_harmless_pastes()
app, _ = make_app(Path(sys.argv[1]))
app.run()
app.conversation.history.store.close()
sys.exit(app.return_code)
"""
ENTERED = b"\x1b[?1049h"


@contextmanager
def opened(folder: Path) -> Iterator[Terminal]:
    """Run kvchat in a terminal of its own."""
    environment = {**os.environ, "TERM": "xterm-256color", "HOME": str(folder)}
    environment["PYTHONPATH"] = str(ROOT)
    terminal = Terminal(APP, [str(folder)], environment, folder, (120, 36))
    try:
        wait_for(terminal, b"sk something")
        yield terminal
    finally:
        terminal.close()


def wait_for(terminal: Terminal, text: bytes) -> None:
    """Read until a text was written since the last call."""
    wait_until(lambda: (terminal.read(0.05), text in terminal.tail)[1])
    terminal.tail = terminal.tail.rpartition(text)[2]


def is_as_before(terminal: Terminal) -> bool:
    """Whether what a shell needs is as it was: lines, echo, screen, mouse."""
    modes = (b"?1049", b"?1000", b"?1003", b"?2004")
    end = terminal.tail
    are_off = all(end.rfind(mode + b"l") > end.rfind(mode + b"h") for mode in modes)
    return are_off and terminal.modes == terminal.first_modes


def stop_and_continue(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("n_times", "is_stopped"), [(4, True), (1, False)])
def test_a_process_that_goes_on_after_a_stop_can_be_used_and_left(
    tmp_path: Path, n_times: int, *, is_stopped: bool
) -> None:
    with opened(tmp_path) as terminal:
        for _ in range(n_times):
            if is_stopped:
                stop_and_continue(terminal.popen.pid)
            else:
                os.kill(terminal.popen.pid, signal.SIGCONT)
        wait_for(terminal, ENTERED)
        wait_for(terminal, b"sk something")
        terminal.write(b"still here")
        wait_for(terminal, b"here")
        terminal.tail = b""
        terminal.write(b"\x11")
        assert terminal.wait(PATIENCE_S) == 0
        assert is_as_before(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was_and_saves(
    tmp_path: Path, number: int
) -> None:
    with opened(tmp_path) as terminal:
        terminal.write(b"a draft")
        wait_for(terminal, b"draft")
        os.kill(terminal.popen.pid, number)
        assert terminal.wait(PATIENCE_S) == 128 + number
        assert is_as_before(terminal)
    with ChatStore(tmp_path / "chats.db") as store:
        assert store.unsent_texts()[None].text == "a draft"


@pytest.mark.parametrize("text", ["a" * 20_000, "some words " * 2000, "漢字" * 5000])
def test_a_text_from_a_terminal_without_paste_marks_is_taken_at_once(
    tmp_path: Path, text: str
) -> None:
    def written() -> str:
        with closing(sqlite3.connect(tmp_path / "chats.db")) as database:
            drafts = database.execute("SELECT content FROM drafts").fetchall()
        return without_marks("".join(content for (content,) in drafts))

    with opened(tmp_path) as terminal:
        terminal.write(text.encode())
        terminal.write(b"the end")
        wait_until(lambda: (terminal.read(0.05), written().endswith("the end"))[1])
        terminal.write(b"\x11")
        assert terminal.wait(PATIENCE_S) == 0
    assert written() == f"{text}the end"


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
    while ENTERED not in shown and (piece := os.read(ours, 4096)):
        shown += piece
    os.close(ours)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGHUP
