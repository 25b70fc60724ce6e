"""A turn in a long chat: how long the screen stops, and how long a key takes to be painted.

    python benchmarks/long_chat.py [--messages 4000] [--turns 20]

The real screen at 120 x 36 with an engine that answers at once, so what is left is the work of the
event loop: saving question and reply, building the request as the engine's pipe takes it, and
painting. A stop is the longest time in a turn in which nothing else could run; on a machine that
others use, the work of the loop's own thread in it says more.
"""

import argparse
import asyncio
import gc
import math
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.events import Key

from app.screens.chat import ChatScreen
from app.store.chats import ChatStore
from app.store.records import NewChat, dump_tokens
from engine.configuration import SamplingSettings
from engine.process.protocol import Generate
from engine.requests import GenerationRequest
from tests.support.fakes_app import ask, make_app, ready, wait_until
from tests.support.fakes_client import Script, ScriptedClient

BEAT_S = 0.002
WORDS = 150
IDS = 200
ADD = """INSERT INTO messages (chat_id, parent_id, role, content, token_ids, vocabulary_id,
    finish_reason, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, 1.0)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4000)
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.messages, options.turns))


async def measure(folder: Path, n_messages: int, n_turns: int) -> None:
    gc.freeze()  # as the program does before it runs
    app, client = make_app(folder, Script(replies=("word " * 30,)))
    client.generate = pickled(client)  # type: ignore[method-assign]  # as the pipe takes it
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(pilot)
        chat_id = fill(screen.controller.history.store, n_messages)
        started = time.perf_counter()
        screen.open_chat(chat_id)
        await pilot.pause()
        print(
            f"{n_messages} messages are shown after {1e3 * (time.perf_counter() - started):.1f} ms"
        )
        stops: list[tuple[float, float]] = []
        keys: list[float] = []
        for turn in range(n_turns):
            beat = asyncio.create_task(longest_stop())
            await asyncio.sleep(5 * BEAT_S)
            await ask(pilot, screen, f"question {turn}")
            await wait_until(pilot, lambda: not screen.controller.is_replying)
            await asyncio.sleep(0.5)  # the last text is painted
            beat.cancel()
            stops.append(await beat)
            keys += [await key_to_paint(screen) for _ in range(5)]
    report("longest stop of a turn", [stop for stop, _ in stops])
    report("  of it, own work", [work for _, work in stops])
    report("key to paint", keys)


def pickled(client: ScriptedClient) -> Callable[[GenerationRequest], None]:
    generate = client.generate

    def asked(request: GenerationRequest) -> None:
        pickle.dumps(Generate(request))
        generate(request)
        client.requests.clear()  # nobody keeps them in the program

    return asked


def fill(store: ChatStore, n_messages: int) -> int:
    """A chat of so many messages, question and reply by turns; gives its id."""
    chat = store.create_chat(
        NewChat(title="long", model_path=None, system_prompt="", sampling=SamplingSettings())
    )
    draw = random.Random(1)
    words = [f"w{i}" for i in range(5000)]
    parent: int | None = None
    with store._writer._connection as db:
        db.execute("BEGIN")
        for i in range(n_messages):
            text = " ".join(draw.choices(words, k=WORDS))
            ids = dump_tokens([draw.randrange(49152) for _ in range(IDS)]) if i % 2 else None
            role = "assistant" if i % 2 else "user"
            row = (chat.id, parent, role, text, ids, "tiny", "end" if i % 2 else None)
            parent = db.execute(ADD, row).lastrowid
        db.execute("UPDATE chats SET head_id = ? WHERE id = ?", (parent, chat.id))
        db.execute("COMMIT")
    return chat.id


async def longest_stop() -> tuple[float, float]:
    """Until it is cancelled: the longest stop by the clock, and by the thread's own time."""
    stop = work = 0.0
    last, worked = time.perf_counter(), time.thread_time()
    try:
        while True:
            await asyncio.sleep(BEAT_S)
            now, done = time.perf_counter(), time.thread_time()
            stop, work = max(stop, now - last - BEAT_S), max(work, done - worked)
            last, worked = now, done
    except asyncio.CancelledError:
        return stop, work


async def key_to_paint(screen: ChatScreen) -> float:
    painted = asyncio.Event()
    started = time.perf_counter()
    screen.composer.post_message(Key("x", "x"))
    screen.composer.call_later(screen.call_after_refresh, painted.set)
    await painted.wait()
    return time.perf_counter() - started


def report(what: str, times_s: list[float]) -> None:
    times = sorted(1e3 * each for each in times_s)
    p95 = times[math.ceil(0.95 * len(times)) - 1]
    print(
        f"{what:24} {statistics.median(times):7.1f} ms median, {p95:.1f} p95, {times[-1]:.1f} max"
        f" ({len(times)})"
    )


if __name__ == "__main__":
    main()
