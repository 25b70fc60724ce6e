"""A real terminal around a command, and what must never reach it."""

import io
import os
import pty
import re
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from app.cli.main import main
from app.sanitize import with_signs

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x1b[8m\x1b[5mb\x9b5m\x9d0;c\x9cd\u202ee\u2066f\u200b\rg\x08h"
"""Retitles, clears, hides, blinks, by C1 controls too, turns the direction, and goes back."""
_STYLE = "(?:[0-2]|3[0-7]|9[0-7]|38;5;[0-9]+)"
_LINE_THAT_GOES_AWAY = r"\r\x1b\[2?K|\r?\x1b\[1A\x1b\[2K|\x1b\[\?25[lh]"
OWN_CODES = re.compile(rf"\x1b\[{_STYLE}(?:;{_STYLE})*m|{_LINE_THAT_GOES_AWAY}")
"""What kvchat itself writes: styles other than hidden and blinking, and progress."""


def harmful(shown: str) -> str:
    """The characters that a terminal would obey, and that kvchat did not mean."""
    left = OWN_CODES.sub("", shown)
    return "".join(c for c in left if c not in "\n\t" and with_signs(c) != c)


def on_terminal(*arguments: str) -> str:
    """What a command writes to a terminal, by whatever way."""

    def call() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["kvchat", *arguments])
            patch.setattr(sys, "stdin", io.StringIO("a prompt"))
            with pytest.raises(SystemExit) as left:
                main()
        assert left.value.code in (0, 1, 2, 130), "it ends by itself"

    return shown_by(call)


def shown_by(call: Callable[[], object]) -> str:
    """What a call writes where standard output and error are a terminal, 300 columns wide."""
    shown: list[bytes] = []
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    reader = threading.Thread(target=_read_all, args=(ours, shown))
    reader.start()
    try:
        with _standing_for_standard(theirs):
            call()
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return b"".join(shown).decode()


def _read_all(ours: int, shown: list[bytes]) -> None:
    try:
        while piece := os.read(ours, 65536):
            shown.append(piece)
    except OSError:  # the other end is closed
        pass


@contextmanager
def _standing_for_standard(terminal: int) -> Iterator[None]:
    """Make a terminal of the descriptors 1 and 2, and of what Python calls so."""
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            _stream(terminal) as out,
            _stream(terminal) as err,
        ):
            patch.setenv("COLUMNS", "300")
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            for number in saved:
                os.dup2(terminal, number)
            yield
            out.flush()
            err.flush()
    finally:
        for number, own in saved.items():
            os.dup2(own, number)
            os.close(own)


def _stream(terminal: int) -> TextIO:
    return open(os.dup(terminal), "w", encoding="utf-8", buffering=1)  # noqa: PTH123  a descriptor
