"""The store on disk: listing 5,000 states, writing and reading, compression.

    python benchmarks/cold_store.py [--folder FOLDER] [--model GGUF]

States are made up; with `--model` the last part compresses a real one of 1,000 tokens. Times of the
process are given beside those of the clock, since other programs do not change them.
"""

import argparse
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState, pack, state_of_line
from engine.cache.snapshot_store import SnapshotStore
from engine.configuration import Configuration

N_STATES = 5000
N_SHARED = 300
N_OWN = 200
STATE_BYTES = 46_000_000
"""Of 2,000 tokens of SmolLM2-135M in f16."""
N_RUNS = 7
NAMESPACE = Namespace("0" * 32, "/nowhere/model.gguf", (("made", "up"),))


def made_state(tokens: list[int], start: int, owner: str, nbytes: int) -> StoredState:
    state = state_of_line(NAMESPACE.key, pack(tokens), start, nbytes=nbytes)
    return replace(state, owners=frozenset({owner}))


def fill(store: SnapshotStore) -> None:
    chance = random.Random(0)
    shared = [chance.randrange(49_152) for _ in range(N_SHARED)]
    for n in range(N_STATES):
        tokens = [*shared, *(chance.randrange(49_152) for _ in range(N_OWN))]
        store.write(NAMESPACE, made_state(tokens, N_SHARED, f"chat:{n}", 64), bytes(64))


def timed(name: str, work: Callable[[], object], *, n_runs: int = N_RUNS) -> float:
    """Print and give the median of several runs, in seconds of the clock."""
    spans = []
    for _ in range(n_runs):
        clock, process = time.perf_counter(), time.process_time()
        work()
        spans.append((time.perf_counter() - clock, time.process_time() - process))
    clock, process = (sorted(column)[n_runs // 2] for column in zip(*spans, strict=True))
    print(f"{name:<44} {clock * 1000:9.1f} ms  ({process * 1000:.1f} ms of the process)")
    return clock


def listing(path: Path) -> None:
    with SnapshotStore(path) as store:
        timed(f"write of {N_STATES:,} small states, flushed", lambda: fill(store), n_runs=1)

    def take_up() -> None:
        with SnapshotStore(path) as store:
            assert len(store.states(NAMESPACE.key)) == N_STATES

    timed(f"list of {N_STATES:,} states at a start", take_up)


def transfer(path: Path) -> None:
    payload = random.Random(1).randbytes(STATE_BYTES)
    state = made_state(list(range(2000)), 0, "chat:1", len(payload))
    with SnapshotStore(path) as store:
        timed("write of 46 MB, flushed", lambda: store.write(NAMESPACE, state, payload))
        timed("read of 46 MB, checked", lambda: store.read(state))
    timed("of that SHA-256", lambda: sha256(payload).digest())


def compression(model: Path) -> None:
    from engine.backends.llama_cpp.backend import LlamaCppBackend
    from engine.backends.llama_cpp.log import NativeLog

    text = "\n".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
    for kind in ("f16", "q8_0"):
        configuration = Configuration(
            model, n_ctx=1024, type_k=kind, type_v=kind, flash_attention="on"
        )
        backend = LlamaCppBackend(configuration, NativeLog())
        tokens = backend.vocabulary.tokenize(text, add_special=True, parse_special=False)[:1000]
        sequence = backend.open()
        for start in range(0, len(tokens), backend.n_batch):
            sequence.prefill(tokens[start : start + backend.n_batch])
        state = bytes(sequence.save())
        backend.close()
        sorted_apart = np.frombuffer(state[: len(state) // 2 * 2], np.uint8).reshape(-1, 2).T
        for name, data in (("", state), (" bytes sorted apart", sorted_apart.tobytes())):
            for level in (1, 6):
                packed = zlib.compress(data, level)
                label = f"{kind}{name}, zlib {level}: {len(packed) / len(data):.3f} of it, in"
                timed(label, lambda data=data, level=level: zlib.compress(data, level), n_runs=1)  # type: ignore[misc]
                timed("  and out", lambda packed=packed: zlib.decompress(packed), n_runs=3)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a disk to measure; else that of /tmp")
    parser.add_argument("--model", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        listing(Path(name) / "list")
        transfer(Path(name) / "transfer")
    if asked.model is not None:
        compression(asked.model)


if __name__ == "__main__":
    main()
