"""What commands print with: on a terminal, no text can move its cursor or change its title.

Lines about chats, models and files show control characters as signs wherever they go. What a model
or a person wrote, and files, go to a pipe or a file as they are.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self

import click

from app.sanitize import escaped, one_line, safe_stream, with_signs

if TYPE_CHECKING:
    from engine.events import Event

Part = str | tuple[str, str]
"""A text, or a text and its style: a colour, `bold`, `dim`, or two of them."""
_MODIFIERS = ("bold", "dim")
QUIET_S = 0.7
"""What takes less is not talked about."""
TELL_EVERY_S = 0.2
LINE_EVERY_S = 5.0
"""Time between two lines of progress without a terminal."""
MOST_INPUT = 1 << 23
"""Characters that are read from standard input: several times what the largest contexts hold."""


def say(*parts: Part, err: bool = False, nl: bool = True) -> None:
    """Print a line; harmful characters are shown as signs."""
    _write("".join(map(_styled, parts)), err=err, nl=nl)


def tell(*parts: Part) -> None:
    """Print a line on standard error; harmful characters are shown as signs."""
    say(*parts, err=True)


def note(text: str) -> None:
    """Print on standard error what the user should know beside the output."""
    tell(f"kvchat: {text}")


def note_waiting(event: "Event") -> None:
    """Print on standard error which other program is waited for."""
    from engine.events import Waiting

    if isinstance(event, Waiting) and event.text:
        note(event.text)


def tell_over(text: str = "") -> None:
    """Write a text over the line of standard error that the cursor is in; that is a terminal."""
    _write(f"\r\033[K{one_line(text)}", err=True, nl=False)


def print_text(pieces: Iterable[str], *, nl: bool = True) -> None:
    """Print a text: as it is into a pipe or a file, harmful characters as signs on a terminal."""
    for piece in (*pieces, "\n") if nl else pieces:
        # Not by `click.echo`, which takes escape sequences out of what goes into a pipe.
        sys.stdout.write(piece)
        sys.stdout.flush()


def print_json(values: object) -> None:
    """Print values as JSON, harmful characters spelled as escapes."""
    _write(escaped(json.dumps(values, indent=2, ensure_ascii=False)))


def prompt_text(prompt: str | None, usage: str) -> str:
    """The prompt that was typed, or standard input where it is left out or `-`.

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
        UsageError: It has more than `MOST_INPUT` characters.
        UnicodeDecodeError: It is no text.
    """
    return _bounded(sys.stdin.read(MOST_INPUT + 1))


def read_line() -> str:
    """A line of standard input, empty at its end; errors as those of `read_input`."""
    return _bounded(sys.stdin.readline(MOST_INPUT + 1))


def _bounded(text: str) -> str:
    if len(text) > MOST_INPUT:
        raise click.UsageError(
            f"standard input has more than {MOST_INPUT:,} characters: send a shorter prompt"
        )
    return text


def redraws() -> bool:
    """Whether progress is drawn over one line: on a terminal without NO_COLOR."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


class StatusLine:
    """Progress on standard error: one line that is redrawn, or without a terminal one now and then.

    It draws when it is called only: a thread that redraws would take time from the engine.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._redraws = redraws()
        self._next_s = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._redraws:
            tell_over(text[: shutil.get_terminal_size().columns - 1])
        elif self._clock() >= self._next_s:
            self._next_s = self._clock() + LINE_EVERY_S
            tell(text)

    def note(self, text: str) -> None:
        """Print a note in the place of the line."""
        self.clear()
        note(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._redraws:
            tell_over()


class SlowReading:
    """Shows how far something is, on one line that goes away; without a terminal says it once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_until = clock() + QUIET_S
        self._redraws = redraws()
        self._has_told = False
        self._timer: threading.Timer | None = None

    def hub(self) -> Self:
        """Say that the Hugging Face hub is waited for, as soon as that takes longer."""
        from engine.model.hub import LISTING_S

        waits = ("waiting for Hugging Face", f"at most {LISTING_S:.0f} s")
        self._timer = threading.Timer(QUIET_S + 0.1, self._tell, waits)
        self._timer.daemon = True
        self._timer.start()
        return self

    def header(self, name: str, n_bytes: int) -> None:
        """Show how much of the header of a remote model has come."""
        from engine.memory.units import MIB

        self._tell(f"reading the header of {name}", f"{n_bytes / MIB:.1f} MiB")

    def scanned(self, n_done: int, n_all: int) -> None:
        """Show how many models of the folders were looked at."""
        self._tell("reading the headers of the models", f"{n_done} of {n_all}")

    def chats(self, n_bytes: int) -> None:
        """Show how much of a file of chats was read."""
        from engine.memory.units import format_bytes

        self._tell("reading the chats", format_bytes(n_bytes))

    def prompts(self, n_read: int) -> None:
        """Show how many lines of a batch were read."""
        self._tell("reading the prompts", f"{n_read:,}")

    def answered(self, n_done: int, n_all: int, tps: float) -> None:
        """Show how many prompts of a batch are answered, and how fast."""
        self._tell("answering", f"{n_done:,} of {n_all:,} · {tps:.0f} tok/s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._timer is not None:
            self._timer.cancel()
        if self._redraws and self._has_told:
            tell_over()

    def _tell(self, what: str, how_far: str) -> None:
        now = self._clock()
        if now < self._quiet_until:
            return
        self._quiet_until = now + TELL_EVERY_S
        if self._redraws:
            tell_over(f"{what}: {how_far}")
        elif not self._has_told:
            tell(f"{what} …")
        self._has_told = True


def _write(text: str, *, err: bool = False, nl: bool = True) -> None:
    click.echo(text, file=safe_stream(err=err), err=err, nl=nl)


def confirmed(question: str, otherwise: str) -> bool:
    """Whether the user says yes to a question.

    Args:
        question: Asked on standard error.
        otherwise: What to type where nobody can be asked, such as `--yes deletes it`.

    Raises:
        UsageError: standard input is no terminal.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} kvchat cannot ask without a terminal: {otherwise}")
    return click.confirm(question, err=True)


def _styled(part: Part) -> str:
    if isinstance(part, str):
        return with_signs(part)
    text, style = part
    if not style or os.environ.get("NO_COLOR"):  # https://no-color.org
        return with_signs(text)
    color = next((word for word in style.split() if word not in _MODIFIERS), None)
    bold, dim = (True if name in style.split() else None for name in _MODIFIERS)
    return click.style(with_signs(text), fg=color, bold=bold, dim=dim)
