"""Records kvchat in a real terminal as one animated SVG, which needs no player and no service.

    python scripts/recording.py MODEL [FILE]

kvchat runs in a pseudo-terminal on the model. A question is asked, its tokens are coloured by who
drafted them, a plan is changed. What is shown is taken several times a second; a row of the screen
is stored once for each text that it had, with the times at which that was in sight. A program that
shows no animations shows the moment behind the reply.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text
from walker.terminal import Terminal

USUAL_SIZE = (120, 36)
BUSY = ("esc stops the reply", "esc takes", "· loading")
"""In sight while a reply comes, something waits to be asked, or a model is loaded."""
SETTINGS = "[chat]\nmax_tokens = 48\ntemperature = 0.7\n"
PROGRAM = "from app.cli.main import main; main()"
PATIENCE_S, SETTLE_S = 180.0, 0.5
F2, DOWN, RIGHT, LEFT = "\x1bOQ", "\x1b[B", "\x1b[C", "\x1b[D"
CTRL_T, ESCAPE = "\x14", "\x1b"
EVERY_S = 0.12
LONGEST_STILL_S = 1.6
"""Of a screen that does not change, no more is shown."""
NOTICE_S = 4.5
"""A notice is gone after it."""
END_S = 2.5
"""The last screen stays so long before all begins again."""
CELL = (8.4, 16.4)
"""Width and height in pixels: as high as the signs of frames are in the usual fonts."""
FONT = "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace"
FONT_PX, BASELINE_PX, EDGE_PX = 14, 13.0, 8
GROUND, INK = "#0e131a", "#dce4ee"
QUESTION = (
    "Write each sentence on a line of its own: The lighthouse stands on a rock. The lamp turns all "
    "night. The ships see it from far away. The keeper counts the ships."
)


@dataclass
class Recording:
    """What a terminal showed, from when on in seconds; `poster` is the frame that stands alone."""

    terminal: Terminal
    frames: list[tuple[float, list[str]]] = field(default_factory=list)
    poster: int = 0
    _begun: float = field(default_factory=time.monotonic)

    def press(self, keys: str, settle_s: float = SETTLE_S) -> None:
        """Press keys, and look at what comes of it."""
        self.terminal.write(keys.encode())
        self.wait(settle_s)

    def wait(self, seconds: float) -> None:
        """Look at the terminal for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            next_at = time.monotonic() + min(left, EVERY_S)
            while (rest := next_at - time.monotonic()) > 0:
                self.terminal.read(rest)
            rows = self.terminal.screen.colored
            if not self.frames or rows != self.frames[-1][1]:
                self.frames.append((time.monotonic() - self._begun, rows))

    def wait_for(self, *texts: str, absent: bool = False) -> None:
        """Look until any text is in sight, or none of them."""
        deadline = time.monotonic() + PATIENCE_S
        while any(text in "\n".join(self.terminal.screen.lines) for text in texts) is absent:
            if not self.terminal.is_alive or time.monotonic() > deadline:
                sys.exit("\n".join(["kvchat does not go on:", *self.terminal.screen.lines]))
            self.wait(EVERY_S)

    def mark(self) -> None:
        """Let what is in sight now stand for all of it."""
        self.wait(3 * EVERY_S)
        self.poster = len(self.frames) - 1


def main() -> None:
    """Use kvchat as a user would, and write what was seen."""
    model = Path(sys.argv[1]).resolve()
    target = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/recording.svg").resolve()
    with tempfile.TemporaryDirectory(prefix="kvchat-rec-") as name:
        home = home_in(Path(name), model)
        terminal = Terminal(PROGRAM, [str(model)], home, Path(name), USUAL_SIZE)
        try:
            recording = Recording(terminal)
            recording.wait_for("ctx ")
            recording.wait_for(*BUSY, absent=True)
            recording.frames.clear()
            show(recording)
        finally:
            terminal.close()
    target.write_text(animated(shortened(recording.frames), recording.poster))
    print(f"{target}: {len(recording.frames)} frames, {target.stat().st_size >> 10} KiB")


def home_in(folder: Path, model: Path) -> dict[str, str]:
    """The variables of a kvchat that is at home in a folder."""
    config = folder / "config" / "kvchat" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(SETTINGS)
    kinds = ("CONFIG", "DATA", "STATE", "CACHE")
    return {
        **os.environ,
        **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in kinds},
        "HOME": str(folder),
        "COLORTERM": "truecolor",
        "TERM": "xterm-256color",
        "KVCHAT_MODELS": str(model.parent),
    }


def show(recording: Recording) -> None:
    """Ask, colour the tokens, plan."""
    for word in QUESTION.split(" "):
        recording.press(f"{word} ", settle_s=0.05)
    recording.press("\r")
    recording.wait_for(*BUSY, absent=True)
    recording.press(CTRL_T)
    recording.wait(NOTICE_S)
    recording.mark()
    recording.press(F2)
    recording.wait_for("knobs")
    for key in (DOWN, RIGHT, RIGHT, RIGHT, LEFT):
        recording.press(key)
    recording.wait(1.0)
    recording.press(ESCAPE)
    recording.wait_for("ctx ")
    recording.wait(SETTLE_S)


# --- the file ---


def shortened(frames: Sequence[tuple[float, list[str]]]) -> list[tuple[float, list[str]]]:
    """The frames from 0 on, none of them in sight for longer than `LONGEST_STILL_S`."""
    shown_s, told = 0.0, []
    for index, (at, rows) in enumerate(frames):
        if index:
            shown_s += min(at - frames[index - 1][0], LONGEST_STILL_S)
        told.append((shown_s, rows))
    return told


def animated(frames: Sequence[tuple[float, list[str]]], poster: int) -> str:
    """An SVG that shows frame after frame, again and again."""
    length = frames[-1][0] + END_S
    width = USUAL_SIZE[0] * CELL[0] + 2 * EDGE_PX
    height = USUAL_SIZE[1] * CELL[1] + 2 * EDGE_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'font-family="{FONT}" font-size="{FONT_PX}" xml:space="preserve" style="white-space:pre">',
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}">',
        f'<animate id="t" attributeName="x" values="0" dur="{length:.2f}s" begin="0s;t.end"/>',
        "</rect>",
    ]
    for y in range(USUAL_SIZE[1]):
        parts += _row(y, frames, poster, length)
    return "\n".join([*parts, "</svg>", ""])


def _row(
    y: int, frames: Sequence[tuple[float, list[str]]], poster: int, length: float
) -> Iterator[str]:
    """Every text that a row of the screen had, and when each was in sight."""
    ends = [at for at, _ in frames[1:]] + [length]
    spans: dict[str, list[tuple[float, float]]] = {}
    begin = 0
    for text, group in groupby(range(len(frames)), lambda index: _at(frames[index][1], y)):
        count = len([*group])
        spans.setdefault(text, []).append((frames[begin][0], ends[begin + count - 1]))
        begin += count
    for text, times in spans.items():
        drawn = _drawn(text, y)
        if not drawn:
            continue
        is_poster = text == _at(frames[poster][1], y)
        hidden = _outside(times, length) if is_poster else times
        state, other = ("visible", "hidden") if is_poster else ("hidden", "visible")
        sets = "".join(
            f'<set attributeName="visibility" to="{other}" begin="t.begin+{start:.2f}s" '
            f'dur="{end - start:.2f}s"/>'
            for start, end in hidden
        )
        yield f'<g visibility="{state}">{sets}{drawn}</g>'


def _at(rows: Sequence[str], y: int) -> str:
    return rows[y] if y < len(rows) else ""


def _outside(spans: Sequence[tuple[float, float]], length: float) -> list[tuple[float, float]]:
    """The times between spans."""
    edges = [0.0, *[edge for span in spans for edge in span], length]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in pairs if end > start]


_CONSOLE = Console(width=400, color_system="truecolor", force_terminal=True)


def _drawn(row: str, y: int) -> str:
    """A row as it is painted: a box behind what has a ground of its own, and its text."""
    column, boxes, texts = 0, [], []
    top = EDGE_PX + y * CELL[1]
    for text, style, _ in Text.from_ansi(row).render(_CONSOLE):
        if text == "\n":
            continue
        color = style.color.get_truecolor().hex if style and style.color else INK
        ground = style.bgcolor.get_truecolor().hex if style and style.bgcolor else GROUND
        if style and style.reverse:
            color, ground = ground, color
        left, wide = EDGE_PX + column * CELL[0], len(text) * CELL[0]
        column += len(text)
        if ground != GROUND:
            boxes.append(
                f'<rect x="{left:.1f}" y="{top:g}" width="{wide:.1f}" height="{CELL[1]:g}" '
                f'fill="{ground}"/>'
            )
        bare = text.strip()
        if bare:
            left += (len(text) - len(text.lstrip())) * CELL[0]
            weight = ' font-weight="bold"' if style and style.bold else ""
            texts.append(
                f'<text x="{left:.1f}" y="{top + BASELINE_PX:g}" fill="{color}"{weight} '
                f'textLength="{len(bare) * CELL[0]:.1f}">{escape(bare, quote=False)}</text>'
            )
    return "".join([*boxes, *texts])


if __name__ == "__main__":
    main()
