"""The store on disk: listing 5,000 states, making a lost index, writing and reading, compression.

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
from hashlib import sha256
from pathlib import Path

import numpy as np

from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState, line_digest, pack, state_key
from engine.cache.snapshot_file import head_of
from engine.cache.snapshot_folder import ColdFolder
from engine.cache.snapshot_store import ColdStore
from engine.configuration import Configuration

N_STATES = 5000
N_SHARED = 300
N_OWN = 200
STATE_BYTES = 46_000_000
"""Of 2,000 tokens of SmolLM2-135M in f16."""
N_RUNS = 7
NAMESPACE = Namespace("0" * 32, "/nowhere/model.gguf", (("made", "up"),))


def made_state(tokens: list[int], start: int, owner: str, nbytes: int) -> StoredState:
    line = line_digest(pack(tokens))
    return StoredState(
        key=state_key(NAMESPACE.key, start, line),
        parent=line_digest(pack(tokens[:start])) if start else "",
        line=line,
        start=start,
        end=len(tokens),
        packed=pack(tokens[start:]),
        nbytes=nbytes,
        owners=frozenset({owner}),
    )


def fill(folder: Path) -> None:
    """Write the files by hand: a flush for each of them would take minutes and measure nothing."""
    chance = random.Random(0)
    shared = [chance.randrange(49_152) for _ in range(N_SHARED)]
    inner = folder / NAMESPACE.key
    inner.mkdir(parents=True)
    for n in range(N_STATES):
        tokens = [*shared, *(chance.randrange(49_152) for _ in range(N_OWN))]
        state = made_state(tokens, N_SHARED, f"chat:{n}", 64)
        (inner / f"{state.key}.kv").write_bytes(head_of(NAMESPACE, state, bytes(64)) + bytes(64))


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
    fill(path)

    def take_up() -> None:
        with ColdFolder(path) as folder:
            assert len(ColdStore(folder, NAMESPACE).states()) == N_STATES

    timed(f"index of {N_STATES:,} states, made of their files", take_up, n_runs=1)
    timed(f"list of {N_STATES:,} states at a start", take_up)


def transfer(path: Path) -> None:
    payload = random.Random(1).randbytes(STATE_BYTES)
    state = made_state(list(range(2000)), 0, "chat:1", len(payload))
    with ColdFolder(path) as folder:
        store = ColdStore(folder, NAMESPACE)
        timed("write of 46 MB, flushed", lambda: store.write(state, payload))
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
