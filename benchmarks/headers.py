"""Times the reading of headers: one of 262,144 tokens, and a library of 200 models.

    ../.venv/bin/python headers.py [--models 200] [--folder DIR] [--runs 50]

Times are of the clock; on a machine that is busy otherwise those of the CPU say more. The library
is written to a new folder below DIR (1.6 GB, its data are holes) and removed again.
Every model has a vocabulary of its own of 151,936 to 262,144 tokens, and nearly as many merges.
"""

import argparse
import random
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from engine.memory.units import MIB
from engine.model.gguf import read_gguf
from engine.model.library import scan

SIZES = (151_936, 200_064, 201_088, 262_144)
N_LAYERS = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        words = [_text("x" * random.Random(n).choice(range(1, 14))) for n in range(max(SIZES))]
        time_one(_write(folder / "one.gguf", words, 262_144, n_merges=0), options.runs)
        (folder / "one.gguf").unlink()
        for number in range(options.models):
            n_vocab = SIZES[number % len(SIZES)]
            start = (number * 1009) % len(words)
            turned = words[start:] + words[:start]
            _write(folder / "models" / f"m{number}.gguf", turned, n_vocab, n_merges=n_vocab - 600)
        time_library(folder / "models", folder / "models.json")


def time_one(path: Path, n_runs: int) -> None:
    times = sorted(_seconds(lambda: read_gguf(path)) for _ in range(n_runs))
    print(f"one header of 262,144 tokens, {path.stat().st_size / MIB:.0f} MiB claimed: ", end="")
    print(f"p50 {times[n_runs // 2] * 1e3:.1f} ms, p95 {times[n_runs * 95 // 100] * 1e3:.1f} ms")


def time_library(folder: Path, cache: Path) -> None:
    told: list[tuple[int, int]] = []
    cpu_before = time.process_time()
    cold_s = _seconds(lambda: scan([folder], cache_path=cache, progress=lambda *n: told.append(n)))
    cpu_s = time.process_time() - cpu_before
    warm_s = min(_seconds(lambda: scan([folder], cache_path=cache)) for _ in range(5))
    entries = scan([folder], cache_path=cache)
    broken = [entry for entry in entries if entry.problem]
    if broken:
        sys.exit(f"{len(broken)} models of the library cannot be read: {broken[0].problem}")
    print(f"library of {len(entries)} models: {cold_s:.2f} s ({cpu_s:.2f} s of CPU), ", end="")
    print(f"told {len(told)} times; ", end="")
    print(f"from the cache {warm_s * 1e3:.0f} ms")


def _seconds(what: object) -> float:
    started = time.perf_counter()
    what()  # type: ignore[operator]
    return time.perf_counter() - started


def _write(path: Path, words: Sequence[bytes], n_vocab: int, *, n_merges: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    keys = [
        _key("general.architecture", 8, _text("qwen3")),
        _key("general.file_type", 4, struct.pack("<I", 15)),
        _key("qwen3.context_length", 4, struct.pack("<I", 40_960)),
        _key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, n_vocab), *words[:n_vocab]),
        _key("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, n_vocab), bytes(4 * n_vocab)),
        _key("tokenizer.ggml.merges", 9, struct.pack("<IQ", 8, n_merges), *words[:n_merges]),
    ]
    names = ["token_embd.weight"]
    for layer in range(N_LAYERS):
        names += [f"blk.{layer}.{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "ffn")]
        names += [f"blk.{layer}.{part}.weight" for part in ("attn_output", "ffn_up", "ffn_down")]
    rows = [_tensor(name, n * 16 * MIB) for n, name in enumerate(names)]
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(keys)))
        file.writelines(keys)
        file.writelines(rows)
        start = -(-file.tell() // 32) * 32
        file.truncate(start + len(rows) * 16 * MIB)
    return path


def _key(name: str, kind: int, *data: bytes) -> bytes:
    return b"".join((_text(name), struct.pack("<I", kind), *data))


def _tensor(name: str, offset: int) -> bytes:
    return _text(name) + struct.pack("<IQQIQ", 2, 4096, 1024, 0, offset)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


if __name__ == "__main__":
    main()
