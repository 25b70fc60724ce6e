"""The one door to the terminal: whatever is printed, no text moves its cursor or changes its title.

Files, servers, logs and models say what they like, and a command prints it in many ways: by itself,
in click's messages, in a traceback, in a warning of a library. All of it passes the door.
"""

import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO, cast

from app.sanitize import with_signs

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Door:
    """Takes the place of a stream that is a terminal; harmful characters arrive as signs.

    It has no file descriptor, by which something could be written past it.
    """

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal
        self.encoding, self.errors = terminal.encoding, terminal.errors
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        return self.terminal.write(with_signs(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        self.terminal.flush()

    def isatty(self) -> bool:
        return True


class _Bytes(io.RawIOBase):
    """The door for text that comes as UTF-8, such as click's completions for a shell."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer") -> int:
        read = bytes(data)
        self._door.write(read.decode("utf-8", "replace"))
        return len(read)


def close_terminal() -> None:
    r"""Put a door before standard output and error, each where it is a terminal.

    A character that the encoding lacks is spelled, in a pipe or file too, as `\u241b`.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        if stream.isatty() and not isinstance(stream, Door):
            setattr(sys, name, cast(TextIO, Door(stream)))


def behind_door(*, err: bool) -> TextIO | None:
    """The terminal itself, for texts that are harmless and coloured; None where there is no door.

    The two consoles alone write to it, `app.cli.console` and `app.console`.
    """
    stream = sys.stderr if err else sys.stdout
    return stream.terminal if isinstance(stream, Door) else None
