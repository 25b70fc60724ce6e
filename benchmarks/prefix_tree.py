"""1,000 chats of 500 tokens that share a system prompt of 300: bytes, and time of a match.

    python benchmarks/prefix_tree.py [--chats 1000] [--disk FOLDER]

States are made up, of so many bytes a token, and cut by slicing. With `--disk` the chats are also
written there, and the time is taken that a second start needs to take them up.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import Payload, PrefixCache
from engine.cache.report import CacheSettings
from engine.cache.snapshot_store import SnapshotStore

N_TOKENS = 500
N_SHARED = 300
N_VOCAB = 49_152
TOKEN_BYTES = 64
NAMESPACE = Namespace("0" * 16, "/nowhere/model.gguf", (("made", "up"),))


def split_state(state: Payload, at: int) -> tuple[bytes, bytes]:
    whole = bytes(state)
    return whole[: at * TOKEN_BYTES], whole[at * TOKEN_BYTES :]


def make_chats(n_chats: int) -> list[list[int]]:
    chance = random.Random(0)
    shared = [chance.randrange(N_VOCAB) for _ in range(N_SHARED)]
    n_own = N_TOKENS - N_SHARED
    return [[*shared, *(chance.randrange(N_VOCAB) for _ in range(n_own))] for _ in range(n_chats)]


def open_cache(store: SnapshotStore | None) -> PrefixCache:
    return PrefixCache(
        NAMESPACE,
        can_slice=True,
        split_state=split_state,
        store=store,
        settings=CacheSettings(),
    )


def percentiles(seconds: list[float]) -> str:
    ranked = sorted(seconds)
    middle, most = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.95)]
    return f"median {middle * 1000:.3f} ms, p95 {most * 1000:.3f} ms"


def put_all(cache: PrefixCache, chats: list[list[int]]) -> list[float]:
    seconds = []
    for index, chat in enumerate(chats):
        with cache.match(chat) as match:
            start = match.n_tokens
        state = bytes((len(chat) - start) * TOKEN_BYTES)
        began = time.perf_counter()
        cache.put(chat, start, state, recompute_s=1.0, owner=f"chat:{index}")
        seconds.append(time.perf_counter() - began)
    return seconds


def match_all(cache: PrefixCache, chats: list[list[int]]) -> list[float]:
    seconds = []
    for chat in random.Random(1).sample(chats, len(chats)):
        began = time.perf_counter()
        with cache.match(chat) as match:
            assert match.n_tokens == N_TOKENS
        seconds.append(time.perf_counter() - began)
    return seconds


def tell(cache: PrefixCache, chats: list[list[int]]) -> None:
    warm = cache.report().tiers[0]
    apart = len(chats) * N_TOKENS * TOKEN_BYTES
    once = (N_SHARED + len(chats) * (N_TOKENS - N_SHARED)) * TOKEN_BYTES
    print(f"bytes in main memory    {warm.nbytes:,}; shared part once {once:,}, apart {apart:,}")
    print(f"match and release       {percentiles(match_all(cache, chats))}")


def write_and_take_up(folder: Path, chats: list[list[int]]) -> None:
    with SnapshotStore(folder) as store:
        cache = open_cache(store)
        put_all(cache, chats)
        began = time.perf_counter()
        cache.close(600.0)
        print(f"rest of the writing     {time.perf_counter() - began:.2f} s")
    with SnapshotStore(folder) as store:
        began = time.perf_counter()
        cache = open_cache(store)
        print(f"taking up at a start    {(time.perf_counter() - began) * 1000:.1f} ms")
        use = cache.report().tiers[1]
        print(f"states on disk          {use.n_entries:,}, {use.nbytes:,} bytes")
        cache.close(10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--disk", type=Path, help="folder to write to; it is left empty")
    options = parser.parse_args()
    chats = make_chats(options.chats)
    cache = open_cache(None)
    print(f"put                     {percentiles(put_all(cache, chats))}")
    tell(cache, chats)
    cache.close(1.0)
    if options.disk is not None:
        with tempfile.TemporaryDirectory(dir=options.disk) as folder:
            write_and_take_up(Path(folder), chats)


if __name__ == "__main__":
    main()
