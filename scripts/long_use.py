"""Uses kvchat in a real terminal for as long as is asked, and looks for exceptions and growth.

    python scripts/long_use.py MODEL [MODEL ...] [--minutes 30] [--seed N] [--keep FOLDER]

kvchat runs in tmux, in a home of its own. It is asked, switched between chats and models, planned
with, exported from, resized down to 20x5 and back, shown in other themes, and its engine is killed
with SIGKILL, in an order that the seed says. Fails where the program ends by itself, a traceback is
painted or logged, a step does not come to its end, or the application's own memory (the engine's
process apart) grows by more than --most-growth MiB between the first round of all steps and the
last third of the time.
"""

import argparse
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PATIENCE_S = 180.0
"""What takes longer hangs: a model is loaded and a reply written on two busy cores in less."""
LOOK_EVERY_S = 0.2
SETTLE_S = 0.5
LOAD_BEGINS_S = 4.0
"""Within it a load has begun, once it was asked for."""
SIZES = ((80, 24), (120, 36), (200, 50), (20, 5), (60, 16))
USUAL_SIZE = (120, 36)
THEMES = ("kvchat-dark", "kvchat-paper", "kvchat-contrast", "kvchat-16", "nord")
QUESTIONS = (
    "Name three colours.",
    "What is a lighthouse for?",
    "Write the numbers from one to ten as words.",
    "Say it again, please, in other words.",
)
SETTINGS = "[chat]\nmax_tokens = 48\ntemperature = 0.7\n"
BUSY = ("esc stops the reply", "esc takes", "· loading")
"""In sight while a reply comes, something waits to be asked, or a model is loaded."""
MIB = 1024 * 1024
SHOWN_LINES = 15


class StepError(Exception):
    """A step did not come to its end."""


@dataclass(slots=True)
class Terminal:
    """kvchat in a window of tmux that is its own."""

    models: Sequence[Path]
    folder: Path
    socket: str = field(default_factory=lambda: f"kvchat-use-{os.getpid()}")

    @property
    def raw_path(self) -> Path:
        """All that was ever painted."""
        return self.folder / "painted"

    def open(self) -> None:
        """Start kvchat on the first model and wait for its prompt."""
        config = self.folder / "config" / "kvchat" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(SETTINGS)
        kinds = ("CONFIG", "DATA", "STATE", "CACHE")
        home = {f"XDG_{kind}_HOME": str(self.folder / kind.lower()) for kind in kinds}
        home |= {"HOME": str(self.folder), "COLORTERM": "truecolor", "TERM": "tmux-256color"}
        home["KVCHAT_MODELS"] = ":".join(str(model.parent) for model in self.models)
        said = " ".join(f"{name}={shlex.quote(value)}" for name, value in home.items())
        program = shlex.join([sys.executable, "-c", "from app.cli.main import main; main()"])
        begin = f"cd {shlex.quote(str(self.folder))}; unset COLUMNS LINES"
        line = f"{begin}; {said} exec {program} {shlex.quote(str(self.models[0]))}"
        width, height = USUAL_SIZE
        size = ("-x", str(width), "-y", str(height))
        painted = f"cat >> {shlex.quote(str(self.raw_path))}"
        self._tmux(
            "new-session", "-d", *size, "sh", "-c", line,
            ";", "set-option", "-g", "remain-on-exit", "on",
            ";", "pipe-pane", "-o", painted,
        )  # fmt: skip
        self.wait_for("ctx ")
        self.wait_for(*BUSY, absent=True)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names."""
        self._tmux("send-keys", *keys)
        time.sleep(SETTLE_S)

    def type(self, text: str, *, settle_s: float = SETTLE_S) -> None:
        """Type a text."""
        self._tmux("send-keys", "-l", text)
        time.sleep(settle_s)

    def resize(self, size: tuple[int, int]) -> None:
        """Give the window another size."""
        self._tmux("resize-window", "-x", str(size[0]), "-y", str(size[1]))
        time.sleep(SETTLE_S)

    def shown(self, *, colored: bool = False) -> str:
        """What is in sight, with the sequences that colour it or without."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colored else []))

    def wait_for(self, *texts: str, absent: bool = False) -> None:
        """Wait until any text is in sight, or none of them.

        Raises:
            StepError: It takes too long, or kvchat has ended.
        """
        deadline = time.monotonic() + PATIENCE_S
        while any(text in self.shown() for text in texts) is absent:
            self.process()
            if time.monotonic() > deadline:
                verb = "is still" if absent else "is not"
                raise StepError(f"{' or '.join(texts)!r} {verb} in sight\n{self.shown()}")
            time.sleep(LOOK_EVERY_S)

    def process(self) -> psutil.Process:
        """The application's process.

        Raises:
            StepError: It has ended.
        """
        pid, is_dead = self._tmux("display-message", "-p", "#{pane_pid} #{pane_dead}").split()
        if is_dead == "1":
            raise StepError(f"kvchat has ended\n{self.shown()}")
        return psutil.Process(int(pid))

    def engine(self) -> psutil.Process | None:
        """The engine's process, the child that holds the most memory."""
        children = self.process().children(recursive=True)
        return max(children, key=lambda each: each.memory_info().rss, default=None)

    def close(self) -> None:
        """Leave kvchat as a user does, and wait until it has ended."""
        self.press("C-q")
        deadline = time.monotonic() + PATIENCE_S
        while self._tmux("display-message", "-p", "#{pane_dead}").strip() != "1":
            if time.monotonic() > deadline:
                raise StepError(f"ctrl+q did not end it\n{self.shown()}")
            time.sleep(LOOK_EVERY_S)

    def end(self) -> None:
        """Close the window, whatever runs in it."""
        subprocess.run(("tmux", "-L", self.socket, "kill-server"), capture_output=True, check=False)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ("tmux", "-L", self.socket, "-f", os.devnull, *arguments),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise StepError(f"tmux {arguments[0]}: {done.stderr.strip()}")
        return done.stdout


class User:
    """What somebody does with kvchat, one step at a time; each ends in the chat, idle."""

    def __init__(self, terminal: Terminal, rng: random.Random) -> None:
        self._terminal = terminal
        self._rng = rng
        self.steps: tuple[Callable[[], None], ...] = (
            self.chat, self.new_chat, self.switch, self.plan, self.export, self.resize,
            self.change_theme, self.settings, self.cache, self.kill_engine, self.another_model,
        )  # fmt: skip

    def chat(self) -> None:
        """Ask, and wait for the reply."""
        self._terminal.press("C-c")
        self._terminal.type(self._rng.choice(QUESTIONS))
        self._terminal.press("Enter")
        time.sleep(SETTLE_S)
        self._terminal.wait_for(*BUSY, absent=True)

    def new_chat(self) -> None:
        """Begin a new chat and ask in it."""
        self._terminal.press("C-n")
        self.chat()

    def switch(self) -> None:
        """Open another chat of the list, and scroll in it."""
        self._terminal.press("C-l")
        self._terminal.press(*["Down"] * self._rng.randrange(1, 5), "Enter")
        self._terminal.press("Tab", "k", "k", "j", "End", "Escape")

    def plan(self) -> None:
        """Plan the loaded model, change something, leave."""
        self._terminal.press("F2")
        self._terminal.wait_for("knobs")
        self._terminal.press("Down", "Right", "Right", "Left")
        self._leave()

    def export(self) -> None:
        """Look at the presets and export one."""
        self._terminal.press("F3")
        self._terminal.wait_for("preview")
        self._terminal.press("Down", "Down", "x")
        time.sleep(2 * SETTLE_S)
        self._leave()

    def resize(self) -> None:
        """Go through sizes, too small ones among them."""
        for size in self._rng.sample(SIZES, 3):
            self._terminal.resize(size)
        self._terminal.resize(USUAL_SIZE)
        self._terminal.wait_for("ctx ")

    def change_theme(self) -> None:
        """Choose another theme by the palette."""
        self._terminal.press("C-p")
        self._terminal.type(f"theme: {self._rng.choice(THEMES)}")
        time.sleep(2 * SETTLE_S)
        self._terminal.press("Enter")
        self._leave()

    def settings(self) -> None:
        """Look a setting up, and change it."""
        self._terminal.press("F11")
        self._terminal.wait_for("enter changes")
        self._terminal.type("graph_symbols")
        self._terminal.press("Enter", "Down", "Enter")
        self._leave()

    def cache(self) -> None:
        """See what is kept."""
        self._terminal.press("F6")
        time.sleep(2 * SETTLE_S)
        self._leave()

    def kill_engine(self) -> None:
        """Kill the engine in the middle of a reply, and start it again."""
        self._terminal.press("C-c")
        self._terminal.type("Count to a thousand.")
        self._terminal.press("Enter")
        engine = self._terminal.engine()
        if engine is not None:
            os.kill(engine.pid, signal.SIGKILL)
        time.sleep(2 * SETTLE_S)
        self._terminal.press("C-r")
        self._wait_for_load()
        self.chat()

    def another_model(self) -> None:
        """Open the next model of the list, where there is one."""
        self._terminal.press("C-o")
        time.sleep(2 * SETTLE_S)
        self._terminal.press("Down", "Enter")
        self._wait_for_load()
        self.chat()

    def _wait_for_load(self) -> None:
        """Wait until a model is loaded; esc would stop it."""
        time.sleep(LOAD_BEGINS_S)
        self._terminal.wait_for(*BUSY, absent=True)
        self._terminal.wait_for("ctx ")

    def _leave(self) -> None:
        """Go back to the chat from whatever is open."""
        for _ in range(4):
            self._terminal.press("Escape")
        self._terminal.wait_for("ctx ")


def main() -> int:
    """Use kvchat; 1 where something was wrong."""
    options = parsed()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.minutes:g} minutes", flush=True)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvchat-use-", dir=options.keep) as name:
        terminal = Terminal([model.resolve() for model in options.model], Path(name))
        try:
            sizes, faults = use(terminal, random.Random(seed), options.minutes * 60)
        finally:
            terminal.end()
        faults += tracebacks(Path(name))
    growth = growth_of(sizes)
    grown = "unknown: too short" if growth is None else f"{growth:+.1f} MiB"
    print(f"memory of the application: {sizes[0]:.0f} MiB at first, grown by {grown}")
    if growth is not None and growth > options.most_growth:
        faults.append(f"memory grew by {growth:.1f} MiB, allowed are {options.most_growth:g}")
    for fault in faults:
        print(f"FAULT  {fault}")
    print("NOT CLEAN" if faults else "clean")
    return 1 if faults else 0


def use(terminal: Terminal, rng: random.Random, seconds: float) -> tuple[list[float], list[str]]:
    """The MiB of the application after each round of all steps, and what went wrong."""
    user = User(terminal, rng)
    terminal.open()
    sizes = [terminal.process().memory_info().rss / MIB]
    counts: dict[str, int] = {}
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            for step in rng.sample(user.steps, len(user.steps)):
                try:
                    step()
                except StepError as error:
                    return sizes, [f"{step.__name__}: {error}"]
                counts[step.__name__] = counts.get(step.__name__, 0) + 1
                if time.monotonic() > deadline:
                    break
            sizes.append(terminal.process().memory_info().rss / MIB)
            print(f"{sum(counts.values())} steps, {sizes[-1]:.0f} MiB", flush=True)
        terminal.close()
    except StepError as error:
        return sizes, [f"at the end: {error}"]
    print(", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    return sizes, []


def growth_of(sizes: Sequence[float]) -> float | None:
    """MiB from the end of the first round to the median of the last third; None without rounds."""
    rounds = sizes[1:]
    if len(rounds) < 3:
        return None
    return statistics.median(rounds[-max(len(rounds) // 3, 1) :]) - rounds[0]


def tracebacks(folder: Path) -> list[str]:
    """The exceptions that were painted or logged."""
    found = []
    for path in (folder / "painted", *folder.glob("state/**/*")):
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        at = max(text.find("Traceback (most recent call last)"), text.find("╭─ Traceback"))
        if at >= 0:
            lines = text[at:].splitlines()[:SHOWN_LINES]
            found.append(f"an exception in {path.name}:\n" + "\n".join(lines))
    return found


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="+", help="GGUF files; the first is opened")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="of the steps; any if not given")
    parser.add_argument("--most-growth", type=float, default=50.0, metavar="MIB")
    parser.add_argument("--keep", type=Path, help="folder in which the home is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
