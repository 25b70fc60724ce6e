"""A terminal that a program runs in: what it shows, and which sequences it was sent."""

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.cells import cell_len

SEQUENCE = re.compile(
    r"\x1b\[(?P<csi>[<=>?]?[\d;:]*[ -/]*[@-~])"
    r"|\x1b(?P<kind>[PX^_\]])(?P<string>[^\x1b\x07]*)(?:\x1b\\|\x07)"
    r"|\x1b(?P<escape>[ -/]*[0-OQ-WYZ\\`-~])"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f-\x9f])"
    r"|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
)
EXPECTED = re.compile(
    r"\x1b\[(?:"
    r"[\d;:]*[mH]"
    r"|\?(?:7|25|1000|1003|1004|1006|1015|1016|1049|2004|2026|2031|2048)[hl]"
    r"|\?(?:2026|2048)\$p|>\d*u|<u|=\d+;?\d*u|6n|\??996n|[JK]"
    r")|\x1b\](?:8;[^\x07\x1b]*|22;[a-z-]*|52;c;[A-Za-z0-9+/=]*)(?:\x1b\\|\x07)",
)
"""What kvchat's libraries send to draw; anything else came out of a text that was shown."""
ANSWERS = {"\x1b[?2026$p": b"\x1b[?2026;2$y"}
TAIL_BYTES = 1 << 18
UNFINISHED = 1 << 22
"""Characters of a sequence without an end, after which it counts as one that was not expected."""
BOOT = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
"""Makes the terminal the program's own, so that it hears of another size."""
GRACE_S = 5.0


class Screen:
    """The cells of a terminal, as the sequences that it was sent leave them."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._text: list[list[str]] = []
        self._styles: list[list[str]] = []
        self._clear()
        self._x = self._y = 0
        self._style = ""
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.strange: list[str] = []
        """Sequences that no drawing needs."""
        self.strings: list[str] = []
        """Application program commands: messages of the watched program."""
        self.queries: list[bytes] = []
        """Answers that the terminal owes."""

    def resize(self, width: int, height: int) -> None:
        """Have another size; what was shown is gone, as the program repaints all of it."""
        self.width, self.height = width, height
        self._clear()

    @property
    def lines(self) -> list[str]:
        """The text of each row."""
        return ["".join(row) for row in self._text]

    @property
    def colored(self) -> list[str]:
        """The rows with the sequences that colour them."""
        return [
            "".join(
                f"\x1b[0m{style}{char}" if at == 0 or style != styles[at - 1] else char
                for at, (char, style) in enumerate(zip(row, styles, strict=True))
            )
            for row, styles in zip(self._text, self._styles, strict=True)
        ]

    def feed(self, data: bytes) -> None:
        """Take what the program wrote."""
        text = self._rest + self._decoder.decode(data)
        at, self._rest = 0, ""
        while at < len(text):
            match = SEQUENCE.match(text, at)
            if match is None:
                self._rest = text[at:]
                if len(self._rest) > UNFINISHED:
                    self.strange.append(self._rest[:80])
                    self._rest = ""
                return
            at = match.end()
            if (plain := match["text"]) is not None:
                self._put(plain)
            elif match["control"] is not None:
                self._control(match["control"])
            else:
                self._obey(match)

    def _obey(self, match: re.Match[str]) -> None:
        whole, csi = match[0], match["csi"]
        if match["kind"] == "_":
            self.strings.append(match["string"])
        elif not EXPECTED.fullmatch(whole):
            self.strange.append(whole)
        elif whole in ANSWERS:
            self.queries.append(ANSWERS[whole])
        elif csi is None:
            pass
        elif csi.endswith("m"):
            self._style = "" if csi in ("m", "0m") else self._style + whole
        elif csi.endswith("H"):
            row, _, column = csi[:-1].partition(";")
            self._y, self._x = int(row or 1) - 1, int(column or 1) - 1
        elif csi == "?1049h":
            self._clear()

    def _control(self, control: str) -> None:
        match control:
            case "\r":
                self._x = 0
            case "\n":
                self._y = min(self._y + 1, self.height - 1)
            case "\a":  # Textual's bell
                pass
            case _:
                self.strange.append(control)

    def _put(self, text: str) -> None:
        if not 0 <= self._y < self.height:
            return
        row, styles = self._text[self._y], self._styles[self._y]
        cells = [*text] if text.isascii() else _cells(text)
        end = min(self._x + len(cells), self.width)
        if self._x < end:
            row[self._x : end] = cells[: end - self._x]
            styles[self._x : end] = [self._style] * (end - self._x)
        self._x += len(cells)

    def _clear(self) -> None:
        self._text = [[" "] * self.width for _ in range(self.height)]
        self._styles = [[""] * self.width for _ in range(self.height)]


def _cells(text: str) -> list[str]:
    """What each cell shows: one that a wide character covers too is empty."""
    cells: list[str] = []
    for char in text:
        width = cell_len(char)
        if width:
            cells += [char, *[""] * (width - 1)]
        elif cells:
            cells[-1] += char
    return cells


class Terminal:
    """A program of Python in a pseudo-terminal of its own."""

    def __init__(
        self,
        code: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        size: tuple[int, int],
    ) -> None:
        """Start it.

        Args:
            code: What Python runs.
            arguments: Of the program.
            environment: All of the program's variables.
            folder: Where it starts.
            size: Columns and rows.
        """
        self.screen = Screen(*size)
        self.tail = b""
        """The last of all that it wrote."""
        self._master, slave = os.openpty()
        self._set_size(*size)
        os.set_blocking(self._master, False)
        self.popen = subprocess.Popen(
            (sys.executable, "-P", "-c", BOOT + code, *arguments),
            stdin=slave, stdout=slave, stderr=slave,
            env=dict(environment), cwd=folder, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.first_modes = self.modes
        """The modes that it began with."""

    @property
    def modes(self) -> list[int]:
        """What `stty` shows: input, output, control and local modes."""
        return termios.tcgetattr(self._master)[:4]

    @property
    def is_alive(self) -> bool:
        """Whether the program runs."""
        return self.popen.poll() is None

    def resize(self, width: int, height: int) -> None:
        """Give it another size."""
        self.screen.resize(width, height)
        self._set_size(width, height)

    def write(self, data: bytes, limit_s: float = 60.0) -> None:
        """Send it keys; a program that does not read them is given this long."""
        deadline = time.monotonic() + limit_s
        while data and self.is_alive and time.monotonic() < deadline:
            readable, writable, _ = select.select([self._master], [self._master], [], 0.5)
            if readable:
                self.read(0)
            if writable:
                with suppress(BlockingIOError, OSError):
                    data = data[os.write(self._master, data[:4096]) :]

    def read(self, wait_s: float) -> bool:
        """Take what it wrote meanwhile, after waiting for something; False where nothing came."""
        if not select.select([self._master], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # nobody has the other end open any more
            time.sleep(min(wait_s, 0.01))
            return False
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        self.screen.feed(data)
        for answer in self.screen.queries:
            self.write(answer)
        self.screen.queries.clear()
        return bool(data)

    def wait(self, limit_s: float) -> int | None:
        """Its exit code, once it has ended; None where it runs on."""
        deadline = time.monotonic() + limit_s
        while self.is_alive and time.monotonic() < deadline:
            self.read(0.05)
        while self.read(0):
            pass
        return self.popen.poll()

    def close(self) -> None:
        """End the program and what it started, and give the terminal back."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.is_alive:
                self.popen.send_signal(number)
                self.wait(GRACE_S)
        with suppress(OSError):
            os.close(self._master)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
