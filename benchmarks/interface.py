"""The screen's own promises: key to paint while a long chat streams, and how soon it is usable.

    python benchmarks/interface.py MODEL [--messages 500] [--tps 80] [--keys 200] [--starts 15]

Both run the program in a pseudo-terminal of 120 x 36. For the keys its engine is a script that
speaks at a steady rate, in a chat of so many messages, so that the rate is the same on every
machine; a key is typed and the time is taken until its character is painted, and the program
itself notes the longest time in which its event loop could do nothing else. For the starts it is
the command `kvchat MODEL` from its exec until the first character that is typed is painted; the
model loads beside it. `--version` is timed too. One start before these is not counted: it leaves
Python's compiled files behind, as an installed program and the second start of any have them.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from long_chat import fill, longest_stop, report
from screen import KVCHAT, MARKS, Terminal, make_home

PLACEHOLDER = "sk something"
"""Of the composer; its first letter is under the cursor and painted apart."""
REPLY = "word " * 40_000
BETWEEN_KEYS_S = 0.06
LIMIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--tps", type=float, default=80.0)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--starts", type=int, default=15)
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        play(options.play, options.messages, options.tps)
        return
    if options.model is None:
        parser.error("a model is needed for the starts")
    with tempfile.TemporaryDirectory() as folder:
        keys, beat = measure_keys(Path(folder), options)
    report("key to paint", keys)
    print(
        f"{'event loop':24} {1e3 * beat['stop_s']:7.1f} ms longest stop, "
        f"{1e3 * beat['work_s']:.1f} ms of it own work; "
        f"{beat['n_tokens']} tokens in {beat['elapsed_s']:.1f} s"
    )
    model = options.model.resolve()
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder)
        start_s(model, compiled)
        starts = [start_s(model, compiled) for _ in range(options.starts)]
        report("start to typed character", starts)
        report("kvchat --version", [version_s(compiled) for _ in range(options.starts)])


# --- keys ---


def measure_keys(folder: Path, options: argparse.Namespace) -> tuple[list[float], dict[str, float]]:
    told = folder / "told.json"
    command = [
        sys.executable, __file__, "--play", str(told),
        "--messages", str(options.messages), "--tps", str(options.tps),
    ]  # fmt: skip
    terminal = Terminal(command, make_home(folder, len(REPLY)))
    if terminal.painted_at("measured", time.perf_counter(), LIMIT_S) is None:
        sys.exit("the screen did not come up")
    terminal.type("go")
    time.sleep(0.5)
    terminal.type("\r")
    time.sleep(2.0)
    keys = []
    for i in range(options.keys):
        mark = MARKS[i % len(MARKS)]
        typed = terminal.type(mark)
        painted = terminal.painted_at(mark, typed, 2.0)
        if painted is None:
            sys.exit(f"key {i} was not painted")
        keys.append(painted - typed)
        # What is written stays short: a long line is another measurement.
        terminal.type("\x7f")
        time.sleep(BETWEEN_KEYS_S)
    terminal.type("\x11")  # ctrl+q
    deadline = time.perf_counter() + LIMIT_S
    while not told.exists() and time.perf_counter() < deadline:
        time.sleep(0.05)
    if not told.exists():
        sys.exit("the program did not end")
    terminal.close()
    return keys, json.loads(told.read_text())


def play(told: Path, n_messages: int, tps: float) -> None:
    """Run the application on a scripted engine; its loop's longest stop is written at its end."""
    from tests.support.fakes_app import make_app
    from tests.support.fakes_client import Script

    script = Script(replies=(REPLY,), tps=tps)
    app, client = make_app(told.parent, script)
    store = app.controller.history.store
    app.controller.open_chat(fill(store, n_messages))
    found: dict[str, float] = {}

    async def watch() -> None:
        while not app.controller.is_replying:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # the question is saved and the reply has begun
        begun, n_before = time.perf_counter(), app.controller.meters.snapshot().reply.n_emitted
        beat = asyncio.create_task(longest_stop())
        while not client.is_closed and app.controller.is_replying:
            await asyncio.sleep(0.05)
            found["elapsed_s"] = time.perf_counter() - begun
            found["n_tokens"] = app.controller.meters.snapshot().reply.n_emitted - n_before
        beat.cancel()
        found["stop_s"], found["work_s"] = await beat
        written = told.with_suffix(".new")
        written.write_text(json.dumps(found))
        written.replace(told)

    gc.freeze()  # as the program does before it runs

    async def run() -> None:
        watching = asyncio.create_task(watch())
        await app.run_async()
        await watching
        store.close()

    asyncio.run(run())


# --- starts ---


def compiling(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment in which Python keeps its compiled files in a folder."""
    kept = {name: text for name, text in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder)}


def start_s(model: Path, compiled: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        environment = compiling(make_home(Path(folder), 64), compiled)
        begun = time.perf_counter()
        terminal = Terminal([str(KVCHAT), str(model)], environment)
        if terminal.painted_at(PLACEHOLDER, begun, LIMIT_S) is None:
            sys.exit("the screen did not come up")
        typed = terminal.type(MARKS[0])
        painted = terminal.painted_at(MARKS[0], typed, LIMIT_S)
        terminal.close()
    if painted is None:
        sys.exit("the first character was not painted")
    return painted - begun


def version_s(compiled: Path) -> float:
    environment = compiling(os.environ, compiled)
    begun = time.perf_counter()
    subprocess.run([KVCHAT, "--version"], capture_output=True, check=True, env=environment)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
