"""The full-screen chat against `kvchat run`: speed, the screen's share of a core, key to paint.

    python benchmarks/screen.py MODEL [--pairs 12] [--tokens 640]

The real program runs in a pseudo-terminal of 120 x 36; the prompt is typed, the figures of the
reply are read from the chat's database. Keys are typed while it streams, and the time is taken
until their character is painted. Runs of screen and command alternate, the first of a pair too.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

KVCHAT = Path(sys.executable).with_name("kvchat")
PROMPT = "Write a long story about a lighthouse keeper and the sea."
MARKS = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=640)
    options = parser.parse_args()
    model = options.model.resolve()
    ratios, shares, paints, speeds = [], [], [], []
    for pair in range(options.pairs):
        order = ("screen", "command") if pair % 2 else ("command", "screen")
        tps = {}
        for side in (*order, "keys"):  # a home of its own: nothing is kept from the one before
            with tempfile.TemporaryDirectory() as folder:
                environment = make_home(Path(folder), options.tokens)
                if side == "command":
                    tps[side] = run_command(model, environment, options.tokens)
                    continue
                screen = run_screen(model, environment, Path(folder), types=side == "keys")
                if side == "screen":
                    tps[side] = screen.tps
                    shares.append(screen.cpu_share)
                paints += screen.paint_s
        ratios.append(tps["screen"] / tps["command"])
        speeds.append(tps["command"])
    paints.sort()
    p95 = paints[int(0.95 * (len(paints) - 1))]
    median = statistics.median(paints)
    print(f"kvchat run       {statistics.median(speeds):7.1f} tokens/s")
    print(f"screen / command {statistics.median(ratios):7.3f} (median of {len(ratios)} pairs)")
    print(f"screen's process {statistics.median(shares):7.1%} of a core while streaming")
    print(
        f"key to paint     {1e3 * median:7.1f} ms median, {1e3 * p95:.1f} p95, {len(paints)} keys"
    )


@dataclass
class ScreenRun:
    tps: float = 0.0
    cpu_share: float = 0.0
    paint_s: list[float] = field(default_factory=list)


def make_home(folder: Path, n_tokens: int) -> dict[str, str]:
    config = folder / "config" / "kvchat"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(
        f"[chat]\ntemperature = 0.0\nmax_tokens = {n_tokens}\n[speculation]\npredictor = 'off'\n"
    )
    return {
        **os.environ,
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }


class Terminal:
    """Reads what a program paints; `seen_at` gives the time of a text."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:
            os.execvpe(command[0], command, environment)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.process = psutil.Process(pid)
        self._seen: list[tuple[float, str]] = []
        self._open = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while self._open:
            ready, _, _ = select.select([self._fd], [], [], 0.5)
            if not ready:
                continue
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return
            self._seen.append((time.perf_counter(), data.decode("utf-8", "replace")))

    def type(self, text: str) -> float:
        os.write(self._fd, text.encode())
        return time.perf_counter()

    def painted_at(self, text: str, since: float, limit_s: float) -> float | None:
        deadline = since + limit_s
        while time.perf_counter() < deadline:
            for at, data in list(self._seen):
                if at >= since and text in data:
                    return at
            time.sleep(0.001)
        return None

    def close(self) -> None:
        self._open = False
        self.process.terminate()
        self.process.wait(10)
        self._reader.join()  # else it would read what gets this number next
        os.close(self._fd)


def run_screen(model: Path, environment: dict[str, str], folder: Path, *, types: bool) -> ScreenRun:
    terminal = Terminal([str(KVCHAT), str(model)], environment)
    result = ScreenRun()
    if terminal.painted_at("measured", time.perf_counter(), 30) is None:
        sys.exit("the screen did not come up")
    time.sleep(2.0)  # the model is loaded in the background
    terminal.type(PROMPT)
    time.sleep(0.5)
    terminal.type("\r")
    time.sleep(0.6)  # the prefill
    cpu, at = cpu_seconds(terminal), time.perf_counter()
    if types:
        result.paint_s = type_marks(terminal)
    else:
        time.sleep(1.2)
        result.cpu_share = (cpu_seconds(terminal) - cpu) / (time.perf_counter() - at)
    stats = None
    while stats is None:
        time.sleep(0.5)
        stats = finished_stats(folder)
    result.tps = float(stats["decode_tps"])
    terminal.close()
    return result


def cpu_seconds(terminal: Terminal) -> float:
    return sum(terminal.process.cpu_times()[:2])


def type_marks(terminal: Terminal) -> list[float]:
    paints = []
    deadline = time.perf_counter() + 1.5
    for mark in MARKS:
        if time.perf_counter() > deadline:
            break
        typed = terminal.type(mark)
        painted = terminal.painted_at(mark, typed, 2.0)
        if painted is not None:
            paints.append(painted - typed)
        time.sleep(0.07)
    return paints


def finished_stats(folder: Path) -> dict[str, float] | None:
    database = folder / "data" / "kvchat" / "chats" / "chats.db"
    if not database.exists():
        return None
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        row = connection.execute(
            "SELECT stats FROM messages WHERE role = 'assistant' AND finish_reason IS NOT NULL"
        ).fetchone()
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return json.loads(row[0]) if row and row[0] else None


def run_command(model: Path, environment: dict[str, str], n_tokens: int) -> float:
    done = subprocess.run(
        [KVCHAT, "run", PROMPT, "--model", str(model), "--json", "--max-tokens", str(n_tokens)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout)["decode_tps"])


if __name__ == "__main__":
    main()
