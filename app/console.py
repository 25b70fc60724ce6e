"""Printing for commands; on a terminal, no text can move its cursor or change its title.

Lines about chats, models and files show control characters as symbols wherever they go. What a
model or a person wrote, and files, go to a pipe or a file unchanged.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from app.format import seconds
from app.sanitize import escaped, one_line, safe_stream, with_signs

if TYPE_CHECKING:
    from engine.events import Event

Part = str | tuple[str, str]
"""A text, or a text and its style: names of `THEME` and colours, `bold` or `dim`."""
THEME = {
    "muted": "dim", "strong": "bold", "heading-minor": "bold", "accent": "yellow",
    "good": "green", "warn": "yellow", "bad": "bold red",
    "mem-weights": "blue", "mem-kv": "yellow", "mem-state": "magenta", "mem-compute": "green",
    "mem-overhead": "white", "mem-draft": "cyan", "mem-projector": "bright_blue",
    "mem-adapters": "bright_magenta", "mem-shared": "white", "mem-free": "bright_black",
    "mem-over": "red",
}  # fmt: skip
"""The terminal's own colours for the styles of lines: a command knows no theme."""
_MODIFIERS = ("bold", "dim")
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
QUIET_S = 0.7
"""Progress is shown for work that takes longer than this."""
REDRAW_S = 0.2
LINE_EVERY_S = 10.0
"""Time between two lines of progress without a terminal."""
BAR_WIDTH = 24
MAX_INPUT = 1 << 23
"""Characters that are read from standard input: several times what the largest contexts hold."""


def print_line(*parts: Part, err: bool = False, nl: bool = True) -> None:
    """Print a line; control characters are shown as symbols."""
    _write("".join(map(_styled, parts)), err=err, nl=nl)


def log_line(*parts: Part) -> None:
    """Print a line on standard error; control characters are shown as symbols."""
    print_line(*parts, err=True)


def note(text: str) -> None:
    """Print on standard error what the user should know beside the output."""
    log_line(f"kvchat: {text}")


def note_waiting(event: "Event") -> None:
    """Print on standard error which other program is waited for."""
    from engine.events import Waiting

    if isinstance(event, Waiting) and event.text:
        note(event.text)


def print_text(pieces: Iterable[str], *, nl: bool = True) -> None:
    """Print a text: unchanged into a pipe; control characters as symbols on a terminal."""
    for piece in (*pieces, "\n") if nl else pieces:
        # Not by `click.echo`, which removes escape sequences from what goes into a pipe.
        sys.stdout.write(piece)
        sys.stdout.flush()


def print_json(value: object) -> None:
    """Print a value as JSON, control characters as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=jsonable)
    _write(escaped(text))


def jsonable(value: object) -> object:
    """A record or path as values of JSON: records by their fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} values cannot be written as JSON")


def prompt_text(prompt: str | None, usage: str) -> str:
    """The typed prompt, or standard input if the prompt is left out or `-`.

    Raises:
        UsageError: it is empty or no text, or standard input is a terminal.
    """
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError(f"no prompt: write {usage}, or pipe a prompt to standard input")
    try:
        text = read_input() if prompt in (None, "-") else str(prompt)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is not {error.encoding} text") from error
    if not text.strip():
        raise click.UsageError(
            f"the prompt is empty: write {usage}, or pipe a prompt to standard input"
        )
    return text


def read_input() -> str:
    """The text of standard input, which may be endless.

    Raises:
        UsageError: it has more than `MAX_INPUT` characters.
        UnicodeDecodeError: it is no text.
    """
    return _bounded(sys.stdin.read(MAX_INPUT + 1))


def read_line() -> str:
    """A line of standard input, empty at its end; errors as those of `read_input`."""
    return _bounded(sys.stdin.readline(MAX_INPUT + 1))


def _bounded(text: str) -> str:
    if len(text) > MAX_INPUT:
        raise click.UsageError(
            f"standard input has more than {MAX_INPUT:,} characters: send a shorter prompt"
        )
    return text


def confirm(question: str, otherwise: str, *, is_sure: bool) -> None:
    """Ask the user on standard error, unless it is sure; a no ends the command with 1.

    `otherwise` is what to type if nobody can be asked, such as `--yes deletes it`.
    """
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} kvchat cannot ask without a terminal: {otherwise}")
    if not click.confirm(question, err=True):
        click.get_current_context().exit(1)


class Progress:
    """Progress on standard error: one line that is redrawn, or a line every 10 s elsewhere.

    It draws only when it is called: a thread that redraws would take time from the engine.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # https://no-color.org: nothing but text
        self._redraws = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._next_s = clock() + QUIET_S
        self._has_line = False
        self._first: tuple[float, float] | None = None
        """Time and share when a share was shown first; an earlier run may have done that much."""
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.clear()

    def show(self, text: str, share: float | None = None) -> None:
        """Replace the line; the finished share of the work adds a bar and the time left."""
        now = self._clock()
        if share is not None:
            self._first = self._first or (now, share)
            elapsed_s, done = now - self._first[0], share - self._first[1]
            if done > 0 and share < 1:
                text += f" · about {seconds(elapsed_s * (1 - share) / done)} left"
        if now < self._next_s:
            return
        if self._redraws:
            self._next_s = now + REDRAW_S
            self._has_line = True
            bar = "" if share is None else f"{'#' * round(share * BAR_WIDTH):-<{BAR_WIDTH}} "
            _overwrite(f"{bar}{text}"[: shutil.get_terminal_size().columns - 1])
        else:
            self._next_s = now + LINE_EVERY_S
            log_line(text if share is None else f"{share:.0%} · {text}")

    def note(self, text: str) -> None:
        """Print a note above the line."""
        self.clear()
        note(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._has_line:
            self._has_line = False
            _overwrite("")

    def hub(self) -> Self:
        """Show that the Hugging Face hub is waited for, as soon as that takes longer."""
        from engine.model.hub import LISTING_S

        text = f"waiting for Hugging Face: at most {LISTING_S:.0f} s"
        self._timer = threading.Timer(QUIET_S + 0.1, self.show, (text,))
        self._timer.daemon = True
        self._timer.start()
        return self

    def header(self, name: str, n_bytes: int) -> None:
        """Show how much of the header of a remote model was read."""
        self.show(f"reading the header of {name}: {n_bytes / 2**20:.1f} MiB")

    def scanned(self, n_done: int, n_all: int) -> None:
        """Show how many models of the folders were read."""
        self.show(f"reading the headers of the models: {n_done} of {n_all}", n_done / n_all)


def _overwrite(text: str) -> None:
    """Write a text over the line of standard error that holds the cursor."""
    _write(f"\r\033[K{one_line(text)}", err=True, nl=False)


def _write(text: str, *, err: bool = False, nl: bool = True) -> None:
    click.echo(text, file=safe_stream(err=err), err=err, nl=nl)


def _styled(part: Part) -> str:
    if isinstance(part, str):
        return with_signs(part)
    text, style = part
    words = style_words(style)
    if not words or os.environ.get("NO_COLOR"):
        return with_signs(text)
    color = next((word for word in words if word not in _MODIFIERS), None)
    bold, dim = (True if name in words else None for name in _MODIFIERS)
    return click.style(with_signs(text), fg=color, bold=bold, dim=dim)


def style_words(style: str) -> list[str]:
    """The colours and modifiers of a style; names that commands do not colour are left out."""
    words = " ".join(THEME.get(name, name) for name in style.split()).split()
    return [word for word in words if word in _WORDS]


_WORDS = {word for style in THEME.values() for word in style.split()}
