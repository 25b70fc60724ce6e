"""What 1,000 kept chats cost a start of kvchat, against an empty store.

    python benchmarks/startup_with_cache.py MODEL [--chats 1000] [--runs 15]

Two homes: one new, and one with a database of so many chats and as many kept lines of 500 tokens
that share their first 300 (made-up states of `--bytes` bytes a token; a start reads none of them).
Both are started in turn, each time as a new process that opens everything but the screen and loads
the model: until the settings, the database and the engine's client are there (`prepare`), until the
model is loaded, and until the tiers are open.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app import paths
from app.opening import ModelRequest
from app.startup import AppParts, prepare
from app.store.chats import ChatStore
from app.store.records import NewChat, NewMessage
from engine.cache.radix import StoredState, pack, state_of_line
from engine.cache.snapshot_store import SnapshotStore
from engine.configuration import SamplingSettings
from engine.events import Failed, Loaded, TiersChanged, WorkerStopped
from engine.process.blocking_client import BlockingClient

N_SHARED, N_LINE = 300, 500
STEPS = ("prepared", "model loaded", "tiers open")
GOAL_S = 0.2
LIMIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--bytes", type=int, default=64, help="of a made-up state, for each token")
    parser.add_argument("--start", action="store_true", help="be one start (used by the script)")
    parser.add_argument("--fill", action="store_true", help="fill a home (used by the script)")
    options = parser.parse_args()
    if options.start:
        print(" ".join(f"{seconds:.6f}" for seconds in start(options.model)))
    elif options.fill:
        fill(options.chats, options.bytes)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="kvchat-start-") as folder:
        homes = {"empty": Path(folder) / "empty", "full": Path(folder) / "full"}
        for home in homes.values():
            child(home, options, "--start")  # the model's hash is read here and remembered
        child(homes["full"], options, "--fill", "--chats", str(options.chats),
              "--bytes", str(options.bytes))  # fmt: skip
        times: dict[str, list[list[float]]] = {"empty": [], "full": []}
        for run in range(options.runs):
            for name in ("empty", "full") if run % 2 == 0 else ("full", "empty"):
                said = child(homes[name], options, "--start")
                times[name].append([float(word) for word in said.split()])
    report(times, options.chats)


def report(times: dict[str, list[list[float]]], n_chats: int) -> None:
    print(f"{'':14}{'empty':>10}{f'{n_chats} chats':>14}{'difference':>13}")
    for at, step in enumerate(STEPS):
        empty, full = ([run[at] for run in times[name]] for name in ("empty", "full"))
        difference = statistics.median(b - a for a, b in zip(empty, full, strict=True))
        print(
            f"{step:14}{statistics.median(empty):8.3f} s{statistics.median(full):12.3f} s"
            f"{difference:+11.3f} s"
        )
    print(f"medians of {len(times['full'])} pairs, from the beginning; goal: {GOAL_S:+.3f} s")


def child(home: Path, options: argparse.Namespace, *arguments: str) -> str:
    """Run this script in a home and give what it says."""
    kinds = {f"XDG_{kind}_HOME": str(home / kind.lower())
             for kind in ("DATA", "STATE", "CACHE", "CONFIG")}  # fmt: skip
    done = subprocess.run(
        (sys.executable, __file__, str(options.model.resolve()), *arguments),
        env={**os.environ, **kinds}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"a start failed: {done.stderr.strip()[-800:]}")
    return done.stdout


def start(model: Path) -> Sequence[float]:
    """Open kvchat without a screen, and give the seconds until each of `STEPS`."""
    began = time.perf_counter()
    opened = prepare(ModelRequest(model=str(model)))
    prepared = time.perf_counter() - began
    opened.controller.load(opened.services.configure(model))
    reached = {"prepared": prepared, **wait_for_tiers(opened, began)}
    opened.close()
    return [reached[step] for step in STEPS]


def wait_for_tiers(opened: AppParts, began: float) -> dict[str, float]:
    reached: dict[str, float] = {}
    for event in BlockingClient(opened.controller.client).events(LIMIT_S):
        at = time.perf_counter() - began
        match event:
            case Loaded():
                reached["model loaded"] = at
            case TiersChanged(report) if len(report.tiers) > 1:
                reached.setdefault("tiers open", at)
            case Failed() | WorkerStopped():
                sys.exit(f"{event.title}: {event.message}")
        if len(reached) == 2:
            break
    return reached


def fill(n_chats: int, token_bytes: int) -> None:
    """Fill the home of this process: chats, and states of the namespace that a start used."""
    with ChatStore(paths.database_path()) as store:
        for number in range(n_chats):
            chat = store.create_chat(
                NewChat(f"Chat {number}", system_prompt="You are the keeper.",
                sampling=SamplingSettings()),
            )  # fmt: skip
            asked = store.add_message(
                NewMessage(chat.id, parent_id=None, role="user", content=f"Question {number}?")
            )
            store.add_message(
                NewMessage(
                    chat.id, parent_id=asked.id, role="assistant", content="An answer. " * 20
                )
            )
    shared = tuple(range(N_SHARED))
    with SnapshotStore(paths.snapshots_dir()) as states:
        (namespace,) = states.namespaces()
        lines = [(0, shared)]
        lines += [(N_SHARED, (*shared, *own_tokens(number))) for number in range(n_chats)]
        for number, (begin, line) in enumerate(lines):
            state = state_of(namespace.key, begin, line, token_bytes, f"chat:{number}")
            states.write(namespace, state, bytes(state.nbytes))


def own_tokens(number: int) -> tuple[int, ...]:
    return (1000 + number, *range(N_SHARED + 1, N_LINE))


def state_of(
    namespace: str, begin: int, line: tuple[int, ...], token_bytes: int, owner: str
) -> StoredState:
    state = state_of_line(
        namespace,
        pack(line),
        begin,
        nbytes=(len(line) - begin) * token_bytes,
        recompute_s=1.0,
        used_at=time.time(),
    )
    return replace(state, owners=frozenset((owner,)))


if __name__ == "__main__":
    main()
