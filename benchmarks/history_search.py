"""How long a search of the chats takes, and the writes beside it.

    python benchmarks/history_search.py [--messages 100000] [--chats 1000] [--runs 20] [--keep FILE]

Makes a database of that many messages (English and made-up words by Zipf's law, some code and some
Chinese, 20 to 200 words each, token ids beside) and searches it with warm caches: the number of
hits, median and worst of the runs of each query, and the median of the processor's time, which
other programs disturb less. Then what ending a reply takes, and how long the database takes to
open.
"""

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from app.store.chats import ChatStore
from app.store.records import NewChat, NewMessage, dump_tokens
from app.store.schema import prepare
from engine.configuration import SamplingSettings

QUERIES = (
    "cache", "the cache", "and", "of the", '"of the"', "in", "a", "remember", "prefetch snapshot",
    '"prefix cache"', "quantised tensor layout", "n_ctx", "self.cache", "!= 0", "->", "模型",
    "缓存", "缓", "模型的缓存", "算过过算", "zqx", "zq", "nowhere at all", "xylophone cache",
    "sampl",
)  # fmt: skip
WORDS = """
    the of and a to in is that it for on with as be this are by or from at which not model token
    cache can one each when more but its layer context value will key than if has time into only
    was used memory same all prefix two state file what how so we head other number first there
    byte size then any after such attention new where block batch over between data both message
    page fast read write step text answer question quantised tensor layout prefetch snapshot
    remember evict branch restore window slide recurrent hybrid sequence probability draft verify
    accept reject sample temperature greedy vocabulary grammar template worker process thread
""".split()  # noqa: SIM905  a text is easier to read
SNIPPETS = (
    "if n_ctx != 0:\n    self.cache[key] = value",
    "def sample(logits: Tensor) -> int: ...",
    "for (int i = 0; i < n_kv_heads; ++i)",
)
CHINESE = "什么是模型的缓存它在内存里保存已经计算过的键和值所以下一次可以更快地回答问题"


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "chats.db"
        if not path.exists():
            _fill(path, options.messages, options.chats)
        print(f"{path.stat().st_size / 2**20:,.0f} MiB\n")
        _tell("open and close", lambda: ChatStore(path).close(), 5)
        with ChatStore(path) as store:
            _search(store, options.runs)
            _end_replies(store)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--keep", type=Path)
    return parser.parse_args()


def _fill(path: Path, n_messages: int, n_chats: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    prepare(database, path)
    database.execute("BEGIN")
    texts = _texts(random.Random(1))
    per_chat = n_messages // n_chats
    for chat in range(1, n_chats + 1):
        database.execute(
            "INSERT INTO chats (id, title, created_at, updated_at, system_prompt, sampling)"
            " VALUES (?, ?, ?, ?, '', '{}')",
            (chat, f"chat {chat} about w{chat}", float(chat), float(chat)),
        )
        for n in range(per_chat):
            message_id = (chat - 1) * per_chat + n + 1
            text = next(texts)
            database.execute(
                "INSERT INTO messages (id, chat_id, parent_id, role, content, token_ids,"
                " finish_reason, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    message_id,
                    chat,
                    message_id - 1 if n else None,
                    "assistant" if n % 2 else "user",
                    text,
                    dump_tokens(range(len(text) // 4)) if n % 2 else None,
                    "end" if n % 2 else None,
                    float(message_id),
                ),
            )
        database.execute("UPDATE chats SET head_id = ? WHERE id = ?", (chat * per_chat, chat))
    database.execute("COMMIT")
    database.close()


def _texts(source: random.Random) -> Iterator[str]:
    # Behind the common words come rarer ones, made up of syllables.
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    made_up = ("".join(source.choices(syllables, k=source.randint(2, 4))) for _ in range(20_000))
    words = [*WORDS, *made_up]
    weights = [1 / n for n in range(1, len(words) + 1)]
    pool = source.choices(words, weights, k=500_000)
    while True:
        start = source.randrange(len(pool) - 200)
        text = " ".join(pool[start : start + source.randint(20, 200)])
        if source.random() < 0.2:
            text += f"\n```\n{source.choice(SNIPPETS)}\n```"
        if source.random() < 0.1:
            cut = source.randrange(len(CHINESE) - 6)
            text += CHINESE[cut : cut + source.randint(3, 30)]
        yield text


def _search(store: ChatStore, n_runs: int) -> None:
    print(f"\n{'query':<20} {'hits':>5} {'median':>10} {'worst':>10} {'processor':>10}")
    medians = []
    for query in QUERIES:
        store.search(query)
        times, busy = [], []
        for _ in range(n_runs):
            began, began_busy = time.perf_counter(), time.thread_time()
            hits = store.search(query)
            times.append(1000 * (time.perf_counter() - began))
            busy.append(1000 * (time.thread_time() - began_busy))
        medians.append(statistics.median(times))
        print(
            f"{query:<20} {len(hits):>5} {medians[-1]:>7.2f} ms {max(times):>7.2f} ms"
            f" {statistics.median(busy):>7.2f} ms"
        )
    print(f"{'slowest median':<26} {max(medians):>7.2f} ms")


def _end_replies(store: ChatStore) -> None:
    """Time the end of replies of 2,000 characters, and a write of one that goes on."""
    chat = store.create_chat(
        NewChat(title="t", model_path=None, system_prompt="", sampling=SamplingSettings())
    )
    texts = _texts(random.Random(2))
    ended, partial = [], []
    for _ in range(50):
        reply = store.add_message(NewMessage(chat.id, parent_id=None, role="assistant", content=""))
        text = " ".join(next(texts) for _ in range(6))[:2000]
        partial.append(_timed(lambda key=reply.id, text=text: _write(store, key, text)))
        ended.append(_timed(lambda key=reply.id, text=text: _end(store, key, text)))
    print(f"\nend of a reply of 2,000 characters {1000 * statistics.median(ended):.2f} ms")
    print(f"write of one that goes on {1000 * statistics.median(partial):.2f} ms")


def _write(store: ChatStore, message_id: int, text: str) -> None:
    store.write_partial(message_id, text, ())
    # What another write waits for is written before it; the flush itself is on the clock.
    store._writer.run(lambda db: db.total_changes)
    store._writer.run(
        lambda db: db.execute(
            "UPDATE messages SET content = ? WHERE id = ? AND finish_reason IS NULL",
            (text, message_id),
        )
    )


def _end(store: ChatStore, message_id: int, text: str) -> None:
    store.finish_message(
        replace(
            store.message(message_id),
            content=text,
            token_ids=tuple(range(500)),
            vocabulary_id="v",
            seed=1,
            finish_reason="end",
            stats=None,
        ),
    )


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _tell(what: str, act: Callable[[], None], n_runs: int) -> None:
    times = [_timed(act) for _ in range(n_runs)]
    print(f"{what}: {statistics.median(times):.3f} s")


if __name__ == "__main__":
    main()
