"""kvchat as a user meets it: the command in a home of its own, and its screen in a terminal."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.terminal import Terminal

MAIN = "from app.cli.main import main; main()"
KEYS = {
    "enter": "\r", "esc": "\x1b", "tab": "\t", "up": "\x1b[A", "down": "\x1b[B",
    "F1": "\x1bOP", "F2": "\x1bOQ", "F3": "\x1bOR", "F4": "\x1bOS", "F6": "\x1b[17~",
    "F11": "\x1b[23~",
}  # fmt: skip
"""What a terminal sends for a key; `ctrl+x` and letters need no entry."""
SIZE = (120, 36)
LAST = "ctrl+g regenerate"
"""Stands below the last reply when it is whole."""
EXIT_S = 60.0
SEEN_S = float(os.environ.get("KVCHAT_TEST_SEEN_S", "120"))
"""How long a text may take to be shown."""


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """A message as the database has it."""

    role: str
    content: str
    finish_reason: str | None
    token_ids: tuple[int, ...]
    stats: dict[str, Any]


class Kvchat:
    """One user's kvchat: folders that tests may look into, commands, and one screen at a time.

    Args:
        folder: Empty; the home of the user.
        models: Files that are put into the folder of models.
        settings: Text of the settings file.
    """

    def __init__(self, folder: Path, models: Sequence[Path] = (), settings: str = "") -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir(parents=True)
        self.models = folder / "models"
        self.models.mkdir()
        for model in models:
            (self.models / model.name).symlink_to(model)
        (folder / "config" / "kvchat").mkdir(parents=True)
        self.settings(settings)
        self._terminal: Terminal | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of everything that is started."""
        inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        kinds = ("CONFIG", "DATA", "STATE", "CACHE")
        return {
            **inherited,
            **{f"XDG_{kind}_HOME": str(self.folder / kind.lower()) for kind in kinds},
            "HOME": str(self.folder),
            "KVCHAT_MODELS": str(self.models),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "TEXTUAL_ANIMATIONS": "none",
            "HF_ENDPOINT": "http://127.0.0.1:9",
        }

    def settings(self, text: str) -> None:
        """Write the settings file."""
        (self.folder / "config" / "kvchat" / "config.toml").write_text(text)

    def messages(self) -> list[SavedMessage]:
        """All messages of the database, in the order in which they were added."""
        database = self.folder / "data" / "kvchat" / "chats" / "chats.db"
        if not database.exists():
            return []
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        rows = connection.execute(
            "SELECT role, content, finish_reason, token_ids, stats FROM messages ORDER BY id"
        ).fetchall()
        connection.close()
        return [
            SavedMessage(
                role, content, reason, tuple(array("i", ids or b"")), json.loads(stats or "{}")
            )
            for role, content, reason, ids, stats in rows
        ]

    # --- commands ---

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command; its standard output.

        Raises:
            AssertionError: it ended with another exit code.
        """
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *arguments],
            cwd=self.work, env=self.environment, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"{arguments}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run a command; its standard output as JSON."""
        return json.loads(self.run(*arguments))

    # --- the screen ---

    def start(self, *arguments: str, size: tuple[int, int] = SIZE) -> None:
        """Open the screen."""
        self._terminal = Terminal(MAIN, arguments, self.environment, self.work, size)

    @property
    def terminal(self) -> Terminal:
        """The terminal of the screen that is open."""
        assert self._terminal is not None, "start it first"
        return self._terminal

    @property
    def text(self) -> str:
        """The rows of the screen."""
        return "\n".join(self.terminal.screen.lines)

    def sees(self, *texts: str, without: str = "") -> str:
        """Wait until the screen shows all of these texts; the screen.

        Args:
            texts: Texts of single rows.
            without: Text that must be gone.
        """
        self._waits(lambda: self._shows(texts, without), f"{texts} without {without!r}")
        return self.text

    def opened(self) -> None:
        """Wait until a model is loaded."""
        self._waits(self._has_loaded, "a loaded model")

    def _has_loaded(self) -> bool:
        head = self.terminal.screen.lines[0]
        return "ctx" in head and "loading" not in head and "no model" not in head

    def answered(self, n_replies: int) -> str:
        """Wait until so many replies are saved whole, and the last one is shown so; the screen."""
        self._waits(lambda: self._n_saved() >= n_replies, f"{n_replies} replies")
        self.settles()
        return self.sees(LAST)

    def _n_saved(self) -> int:
        return sum(each.finish_reason is not None for each in self.messages())

    def _waits(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SEEN_S
        while not is_so():
            assert self.terminal.is_alive, f"it ended:\n{self.terminal.tail!r}"
            assert time.monotonic() < deadline, f"no {what} in\n{self.text}"
            self.terminal.read(0.05)

    def _shows(self, texts: Sequence[str], without: str) -> bool:
        shown = self.text
        return all(text in shown for text in texts) and not (without and without in shown)

    def press(self, *keys: str) -> None:
        """Press keys by their names, such as `enter`, `F2`, `ctrl+q` or a letter."""
        for key in keys:
            control = key.removeprefix("ctrl+")
            sent = chr(ord(control) & 0x1F) if control != key else KEYS.get(key, key)
            self.terminal.write(sent.encode())
            if key == "esc":
                self.settles()  # what follows at once would be a sequence with it

    def write(self, text: str) -> None:
        """Type a text, as a paste with brackets would bring it."""
        self.terminal.write(f"\x1b[200~{text}\x1b[201~".encode())

    def asks(self, text: str) -> None:
        """Type a question and send it."""
        self.write(text)
        self.sees(text.splitlines()[0][:30])
        self.press("enter")

    def settles(self, seconds: float = 0.3) -> str:
        """Read what is painted for so long; the screen."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.terminal.read(left)
        return self.text

    def quits(self) -> None:
        """Leave by the key; it must end and give the terminal back."""
        self.press("ctrl+q")
        code = self.terminal.wait(EXIT_S)
        assert code == 0, f"it ended with {code}"
        self.close()

    @property
    def engine_pids(self) -> list[int]:
        """Processes that the screen started."""
        with suppress(psutil.NoSuchProcess):
            return [each.pid for each in psutil.Process(self.terminal.popen.pid).children()]
        return []

    def close(self) -> None:
        """End whatever is left of the screen."""
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None
