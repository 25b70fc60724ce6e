"""Replace control characters in everything that reaches the terminal.

Texts of files, servers, logs and models are printed by kvchat, by click's messages, in tracebacks
and in warnings of libraries. All of them pass one stream, so that no text moves the cursor or
changes the terminal's title.
"""

import io
import json
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO, cast

from rich.cells import cell_len

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u200b\u2028\u2029\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
# Between Latin letters a joiner has a width in a terminal, and none in our count.
_JOINER = "(?<=[\x00-\u02ff])\u200d|\u200d(?=[\x00-\u02ff])"
_HARMFUL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}\ud800-\udfff]|{_JOINER}")
TAB_WIDTH = 4


def visible(text: str) -> str:
    r"""The text with every harmful character shown as a sign; `\n` stays, tabs become spaces."""
    text = with_signs(text)
    return text.expandtabs(TAB_WIDTH) if "\t" in text else text


def with_signs(text: str) -> str:
    r"""The text with every harmful character shown as a sign; `\n` and tabs stay."""
    return _HARMFUL.sub(_sign, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text as one line, harmful characters shown as signs."""
    return visible(" ".join(text.split()))


def escaped(text: str) -> str:
    r"""JSON text with every harmful character as an escape, such as `\u009b`."""
    return _HARMFUL.sub(lambda match: json.dumps(match.group())[1:-1], text)


def without_controls(text: str) -> str:
    r"""The text without harmful characters, for the clipboard; `\n` and tabs stay."""
    return _HARMFUL.sub("", text.replace("\r\n", "\n"))


def harmless(text: str) -> str:
    """A part of a line without what moves the cursor or turns the direction; as wide as before."""
    return _HARMFUL.sub(lambda match: "\ufffd" * cell_len(match.group()), text.replace("\n", ""))


class Door:
    """Replaces the stream of a terminal; harmful characters are written as signs.

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


def close_terminal() -> None:
    r"""Put a door before standard output and error, each where it is a terminal.

    A character that the encoding lacks is written as an escape, in a pipe or file too, as `\u241b`.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        if stream.isatty() and not isinstance(stream, Door):
            setattr(sys, name, cast(TextIO, Door(stream)))


def safe_stream(*, err: bool) -> TextIO | None:
    """The terminal itself, for texts that are harmless and coloured; None where there is no door.

    The two consoles alone write to it, `app.console` and `app.console`.
    """
    stream = sys.stderr if err else sys.stdout
    return stream.terminal if isinstance(stream, Door) else None


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


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
