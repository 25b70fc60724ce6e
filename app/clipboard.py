"""Copying text out of the terminal."""

import os
import shutil
import subprocess
from functools import partial

from textual.app import App

from app.sanitize import without_controls

_PROGRAMS = (("wl-copy",), ("xclip", "-selection", "clipboard"), ("pbcopy",))
_TIMEOUT_S = 2.0


def copy(app: App[object], text: str, what: str = "") -> None:
    """Copy by the terminal's own sequence (OSC 52) and, locally, by a clipboard program too.

    A terminal never says whether it obeyed the sequence, so the notice names the way out where
    it is known to refuse.
    """
    text = without_controls(text)
    app.copy_to_clipboard(text)
    app.run_worker(partial(_copy_too, app, text, what), thread=True, group="copy")


def _copy_too(app: App[object], text: str, what: str) -> None:
    """Copy by a program, which may take a moment, and say what came of it; a thread's work."""
    copied = _by_program(text)
    size = f"{what + ', ' if what else ''}{len(text):,} characters"
    if not copied and (hint := _hint()):
        app.notify(f"Copied {size}. {hint}", severity="warning")
    else:
        app.notify(f"Copied {size}.", timeout=2)


def _by_program(text: str) -> bool:
    if "SSH_TTY" in os.environ:
        return False
    for program in _PROGRAMS:
        path = shutil.which(program[0])
        if path is None or not _has_display(program[0]):
            continue
        try:
            subprocess.run(
                [path, *program[1:]],
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


def _has_display(program: str) -> bool:
    needed = {"wl-copy": "WAYLAND_DISPLAY", "xclip": "DISPLAY"}.get(program)
    return needed is None or needed in os.environ


def _hint() -> str:
    if os.environ.get("TERM_PROGRAM") == "Apple_Terminal":
        return "Terminal.app refuses this: select with the mouse and press cmd+c."
    if "TMUX" in os.environ:
        return "In tmux this needs `set -g set-clipboard on`."
    return ""
