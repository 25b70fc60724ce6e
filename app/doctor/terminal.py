"""Whether the terminal can show the screen."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping

from app.doctor.check import Check

COLUMNS, LINES = 80, 24
GOOD_COLUMNS, GOOD_LINES = 120, 36


def check_terminal() -> Iterator[Check]:
    """Check size, colours and characters of the terminal that this runs in."""
    yield _size(is_terminal=all(s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)))
    yield check_colors(os.environ)
    yield check_characters(sys.stdout.encoding)


def check_colors(environment: Mapping[str, str]) -> Check:
    """Say how many colours the terminal claims to have."""
    term = environment.get("TERM", "")
    if "NO_COLOR" in environment:
        return Check("colours", "note", "NO_COLOR is set: the screen is black and white", None)
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "direct" in term:
        return Check("colours", "ok", f"16 million (TERM={term})")
    if "256color" in term:
        return Check("colours", "ok", f"256 (TERM={term})")
    return Check(
        "colours",
        "note",
        f"TERM={term or 'not set'} promises few colours",
        "set TERM=xterm-256color, or tmux-256color in tmux, if your terminal has them",
    )


def check_characters(encoding: str) -> Check:
    """Say whether box and bar characters can be written."""
    if encoding.lower().replace("-", "") == "utf8":
        return Check("characters", "ok", "UTF-8")
    return Check(
        "characters",
        "fail",
        f"the encoding is {encoding}: frames and bars cannot be written",
        "set LANG to a UTF-8 locale such as C.UTF-8",
    )


def _size(*, is_terminal: bool) -> Check:
    if not is_terminal:
        return Check(
            "terminal",
            "note",
            "this is not run in a terminal",
            "the chat needs one; `kvchat run` works without",
        )
    columns, lines = shutil.get_terminal_size()
    detail = f"{columns} columns, {lines} lines"
    if columns < COLUMNS or lines < LINES:
        advice = f"make it {COLUMNS}x{LINES} at least, better {GOOD_COLUMNS}x{GOOD_LINES}"
        return Check("terminal", "note", detail, advice)
    return Check("terminal", "ok", detail)
