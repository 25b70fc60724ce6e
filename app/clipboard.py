"""Copying text out of the terminal, and pasting into it."""

import os
import re
import shutil
import subprocess
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable
from functools import partial

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.message import Message

from app.sanitize import without_controls

_PROGRAMS = (
    ("WAYLAND_DISPLAY", "wl-copy"),
    ("DISPLAY", "xclip", "-selection", "clipboard"),
    ("", "pbcopy"),
)
"""Programs that copy, each after the variable of the display that it needs."""
_TIMEOUT_S = 2.0


def copy(app: App[object], text: str, what: str = "") -> None:
    """Copy by the terminal's own sequence (OSC 52) and, locally, by a clipboard program too.

    A terminal never reports whether it obeyed the sequence, so the notice names the way out where
    it is known to refuse.
    """
    text = without_controls(text)
    app.copy_to_clipboard(text)
    app.run_worker(partial(_copy_too, app, text, what), thread=True, group="copy")


def _copy_too(app: App[object], text: str, what: str) -> None:
    """Copy by a program, which may take a moment, and report the result; called in a thread."""
    copied = _by_program(text)
    size = f"{what + ', ' if what else ''}{len(text):,} characters"
    if not copied and (hint := _hint()):
        app.notify(f"Copied {size}. {hint}", severity="warning")
    else:
        app.notify(f"Copied {size}.", timeout=2)


def _by_program(text: str) -> bool:
    if "SSH_TTY" in os.environ:
        return False
    for display, program, *arguments in _PROGRAMS:
        path = shutil.which(program)
        if path is None or (display and display not in os.environ):
            continue
        try:
            subprocess.run(
                [path, *arguments],
                input=text.encode(),
                timeout=_TIMEOUT_S,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return True
    return False


def _hint() -> str:
    if os.environ.get("TERM_PROGRAM") == "Apple_Terminal":
        return "Terminal.app does not let programs copy: select with the mouse and press cmd+c."
    if "TMUX" in os.environ:
        return "In tmux, copying needs `set -g set-clipboard on`."
    return ""


# --- pastes ---

PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"
FAST_LETTERS = 64
"""Number of characters in one read that count as a paste, because nobody types so fast."""
_FAST = re.compile(rf"\x1b[^\x00-\x1f\x7f]*|[^\x00-\x1f\x7f-\x9f]{{{FAST_LETTERS},}}")
ESCAPE_SIGN = "\u241b"


class HarmlessPastes(XTermParser):
    """Reads what the terminal sends; within a paste an escape begins no key.

    Textual 8.2.8 takes the sequences in a paste for keys, so that a pasted text presses enter where
    the terminal leaves them in it, as tmux does. Many letters at once, from a terminal that marks
    no pastes, are a paste too.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._is_within = False
        self._before = ""
        """Last characters before a paste, whose start mark may arrive in two parts."""
        self._held = ""
        """Last characters of a paste, which may be the first part of its end mark."""

    def feed(self, data: str) -> Iterable[Message]:
        read = "".join(self._harmless(data))
        return super().feed(read) if read or not data else ()  # nothing is the end

    def _harmless(self, data: str) -> Iterable[str]:
        while data:
            if self._is_within:
                text, end, data = (self._held + data).partition(PASTE_ENDS)
                begun = (n for n in range(len(PASTE_ENDS)) if text.endswith(PASTE_ENDS[:n]))
                n_held = 0 if end else max(begun)
                self._held = text[len(text) - n_held :]
                self._is_within = not end
                yield text[: len(text) - n_held].replace("\x1b", ESCAPE_SIGN) + end
                continue
            seen = self._before + data
            start = seen.find(PASTE_BEGINS)
            if start < 0:
                self._before = seen[1 - len(PASTE_BEGINS) :]
                yield _FAST.sub(_as_paste, data)
                return
            at = start + len(PASTE_BEGINS) - len(self._before)
            self._is_within, self._before = True, ""
            typed, mark = data[: max(at - len(PASTE_BEGINS), 0)], data[:at][-len(PASTE_BEGINS) :]
            yield _FAST.sub(_as_paste, typed) + mark
            data = data[at:]


def _as_paste(fast: re.Match[str]) -> str:
    text = fast[0]
    return text if text.startswith("\x1b") else f"{PASTE_BEGINS}{text}{PASTE_ENDS}"


def read_harmless_pastes() -> None:
    """Let the drivers of terminals read pastes so, from now on, and bytes that are no text."""
    if sys.platform == "win32":  # whose console has events of its own
        return
    from textual.drivers import linux_driver, web_driver

    for driver in (linux_driver, web_driver):
        driver.XTermParser = HarmlessPastes  # type: ignore[attr-defined]  # as they import it
        driver.getincrementaldecoder = lambda encoding: partial(  # type: ignore[attr-defined]
            getincrementaldecoder(encoding), errors="replace"
        )
