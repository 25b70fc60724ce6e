"""The screen: key to paint, stops of its event loop, start, and speed beside `kvchat run`.

    python benchmarks/interface.py MODEL [--messages 500 4000] [--tps 80] [--keys 200]
        [--pairs 12] [--tokens 640]

The program runs in a pseudo-terminal of 120 x 36. For the keys a script streams as its engine in a
chat of N messages; a key is timed from typing to paint, and the program notes the longest stop of
its event loop while it sends the question, streams, and saves the reply. Then replies of the screen
and of `kvchat run` alternate; a start is from exec to the paint of the first typed character.
"""

import argparse
import asyncio
import fcntl
import gc
import json
import os
import pty
import sqlite3
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from app.store.chats import ChatStore
from app.store.records import Chat, ChatTree, dump_tokens

KVCHAT = Path(sys.executable).with_name("kvchat")
PROMPT = "Write a long story about a lighthouse keeper and the sea."
PLACEHOLDER = "sk something"  # its first letter is under the cursor and painted apart
MARKS = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞ"
CONFIG = "[chat]\ntemperature = 0.0\nmax_tokens = {}\n[speculation]\npredictor = 'off'\n"
COLOURS = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
BEAT_S, LIMIT_S = 0.002, 60.0
STATS = "SELECT stats FROM messages WHERE role = 'assistant' AND finish_reason IS NOT NULL"
ADD = """INSERT INTO messages (chat_id, parent_id, role, content, token_ids, finish_reason,
    vocabulary_id, created_at) VALUES (?, ?, ?, ?, ?, ?, 'tiny', 1.0)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--messages", type=int, nargs="+", default=[500, 4000])
    for name, number in {"tps": 80, "keys": 200, "pairs": 12, "tokens": 640}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        asyncio.run(play(options.model, options.messages[0], options.tps))
        return
    model = str(options.model.resolve())
    for n_messages in options.messages:
        measure_keys(n_messages, options)
    pairs = [measure_pair(model, options.tokens, is_odd=n % 2) for n in range(options.pairs)]
    starts, ratios, shares = zip(*pairs, strict=True)
    report("start to typed character", starts)
    print(f"screen / command {median(ratios):.3f}, {median(shares):.1%} of a core while streaming")


def report(what: str, times_s: list[float]) -> None:
    times = sorted(1e3 * each for each in times_s)
    p95 = times[int(0.95 * (len(times) - 1))]
    print(f"{what}: {median(times):.1f} ms median, {p95:.1f} p95, {times[-1]:.1f} max")


def wait_for(find: Callable[[], Any], pause_s: float = 0.001, limit_s: float = LIMIT_S) -> Any:
    end = time.perf_counter() + limit_s
    while not (found := find()):
        if time.perf_counter() > end:
            sys.exit("the program did not paint or end")
        time.sleep(pause_s)
    return found


class Terminal:
    """A program in a pseudo-terminal with a home of its own, and what it painted when."""

    def __init__(self, command: list[str], folder: str, n_tokens: int = 64) -> None:
        config = Path(folder, "CONFIG", "kvchat", "config.toml")
        config.parent.mkdir(parents=True)
        config.write_text(CONFIG.format(n_tokens))
        pid, self._fd = pty.fork()
        if pid == 0:
            names = ("CONFIG", "DATA", "STATE", "CACHE")
            home = {f"XDG_{name}_HOME": f"{folder}/{name}" for name in names} | {"HOME": folder}
            os.execvpe(command[0], command, os.environ | home | COLOURS)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.process = psutil.Process(pid)
        self._seen: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):  # the program has ended
            while data := os.read(self._fd, 65536):
                self._seen.append((time.perf_counter(), data.decode("utf-8", "replace")))

    def type(self, text: str) -> float:
        os.write(self._fd, text.encode())
        return time.perf_counter()

    def painted_at(self, text: str, since: float = 0.0) -> float:
        seen = self._seen
        return wait_for(lambda: next((t for t, each in seen if t >= since and text in each), None))

    def ask(self, text: str) -> None:
        self.painted_at("measured")
        time.sleep(2.0)  # the model is loaded in the background
        self.type(text)
        time.sleep(0.5)
        self.type("\r")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def measure_keys(n_messages: int, options: argparse.Namespace) -> None:
    keys = []
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        command = f"{results} --play --messages {n_messages} --tps {options.tps}".split()
        terminal = Terminal([sys.executable, __file__, *command], folder)
        terminal.ask("go")
        time.sleep(2.0)
        for i in range(options.keys):
            typed = terminal.type(MARKS[i % len(MARKS)])
            keys.append(terminal.painted_at(MARKS[i % len(MARKS)], typed) - typed)
            terminal.type("\x7f")  # a long line is another measurement
            time.sleep(0.06)
        terminal.type("\x1b")
        wait_for(results.exists)
        terminal.close()
        report(f"key to paint, {n_messages} messages", keys)
        for what, (stop_s, work_s) in json.loads(results.read_text()).items():
            print(f"  {what}: longest stop {1e3 * stop_s:.1f} ms, own work {1e3 * work_s:.1f} ms")


async def play(results: Path, n_messages: int, tps: float) -> None:
    """Run the application on a scripted engine; the stops of its loop are written at the end."""
    from tests.support.fakes_app import make_app
    from tests.support.fakes_client import Script

    app, _ = make_app(results.parent, Script(replies=("word " * 40_000,), tps=tps))
    chat = app.conversation
    chat.open_chat(fill(chat.history.store, n_messages))

    async def watch() -> None:
        await longest_stop(LIMIT_S, lambda: not chat.is_replying)
        stops = {
            "sending": await longest_stop(1.0, lambda: True),
            "streaming": await longest_stop(LIMIT_S, lambda: chat.is_replying),
            "saving": await longest_stop(0.5, lambda: True),
        }
        results.with_suffix(".new").write_text(json.dumps(stops))
        results.with_suffix(".new").replace(results)

    gc.freeze()  # as the program does before it runs
    await asyncio.gather(app.run_async(), watch())


async def longest_stop(limit_s: float, goes_on: Callable[[], bool]) -> tuple[float, float]:
    """The longest stop by the clock, and the most processor time between two beats."""
    stop = work = 0.0
    last, worked = time.perf_counter(), time.thread_time()
    end = last + limit_s
    while last < end and goes_on():
        await asyncio.sleep(BEAT_S)
        now, done = time.perf_counter(), time.thread_time()
        stop, work = max(stop, now - last - BEAT_S), max(work, done - worked)
        last, worked = now, done
    return stop, work


def fill(store: ChatStore, n_messages: int) -> int:
    """A chat of N messages, question and reply by turns; gives its id."""
    chat = store.add_trees([ChatTree(Chat(title="long"), ())])[0]
    text, ids, parent = " ".join(f"w{i}" for i in range(150)), dump_tokens(range(200)), None
    with sqlite3.connect(store.path) as db:
        for i in range(n_messages):
            kind = ("user", text, None, None) if i % 2 == 0 else ("assistant", text, ids, "end")
            parent = db.execute(ADD, (chat.id, parent, *kind)).lastrowid
        db.execute("UPDATE chats SET head_id = ? WHERE id = ?", (parent, chat.id))
    return chat.id


def measure_pair(model: str, n_tokens: int, *, is_odd: int) -> tuple[float, float, float]:
    """The start, the screen's speed over the command's, and the screen's share of a core."""
    first = 0.0 if is_odd else command_tps(model, n_tokens)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        terminal = Terminal([str(KVCHAT), model], folder, n_tokens)
        terminal.painted_at(PLACEHOLDER)
        start_s = terminal.painted_at(MARKS[0], terminal.type(MARKS[0])) - begun
        terminal.ask("\x7f" + PROMPT)
        time.sleep(0.6)  # the prefill
        cpu_s, begun = sum(terminal.process.cpu_times()[:2]), time.perf_counter()
        time.sleep(1.2)
        share = (sum(terminal.process.cpu_times()[:2]) - cpu_s) / (time.perf_counter() - begun)
        database = Path(folder, "DATA", "kvchat", "chats", "chats.db")
        speed = wait_for(lambda: finished_tps(database), 0.5, 600.0)
        terminal.close()
    return start_s, speed / (first or command_tps(model, n_tokens)), share


def finished_tps(database: Path) -> float | None:
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        row = connection.execute(STATS).fetchone()
        return json.loads(row[0])["decode_tps"] if row and row[0] else None


def command_tps(model: str, n_tokens: int) -> float:
    words = f"--json --temperature 0 --predictor off --max-tokens {n_tokens}".split()
    output = subprocess.check_output([KVCHAT, "run", PROMPT, "--model", model, *words])
    return float(json.loads(output)["decode_tps"])


if __name__ == "__main__":
    main()
