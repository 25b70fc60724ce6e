"""What it takes to requantise a chat's state, beside reading its tokens again.

python benchmarks/requantise.py MODEL… [--tokens 1024 4096] [--runs 5] [--threads 2] [--json FILE]

Each run reads a text in a context of the type that is left, then in one of the type that is wanted,
and converts the first state into the second's types and restores it there: pairs, one after the
other, medians of the ratios. `rows` is how far the logits of eight further tokens lie from those of
an f16 cache, as a share of their size: of the requantised state, and of one that was read again.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Sequence
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration, KVTypeName, KVTypes

PAIRS: tuple[tuple[KVTypeName, KVTypeName], ...] = (
    ("f16", "q8_0"),
    ("f16", "q5_1"),
    ("f16", "q4_0"),
    ("f16", "iq4_nl"),
    ("q8_0", "f16"),
    ("q4_0", "f16"),
    ("q8_0", "q4_0"),
)
N_BEHIND = 8


@dataclass(frozen=True, slots=True)
class Result:
    """One pair of types at one length; times in seconds, medians."""

    model: str
    n_tokens: int
    type_before: str
    type_after: str
    read_s: float
    convert_s: float
    restore_s: float
    ratio: float
    """Reading again over converting and restoring: how many times quicker."""
    state_mib: float
    error_requantised: float
    error_native: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for model in options.models:
        for n_tokens in options.tokens:
            for before, after in PAIRS:
                result = measured(model, n_tokens, before, after, options.runs, options.threads)
                results.append(result)
                print(line(result), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")


def measured(
    path: Path, n_tokens: int, before: KVTypeName, after: KVTypeName, runs: int, threads: int
) -> Result:
    log = NativeLog()
    configuration = Configuration(
        path, n_ctx=n_tokens + 64, n_threads=threads, flash_attention="on"
    )
    exact = opened(configuration, "f16", log)
    old, new = opened(configuration, before, log), opened(configuration, after, log)
    try:
        line = text(old, n_tokens + N_BEHIND)
        reads, converts, restores = [], [], []
        for _ in range(runs):
            state, _ = read(old, line[:n_tokens])
            native, read_s = read(new, line[:n_tokens])
            began = time.perf_counter()
            made = new.requantise(state, KVTypes(before, before))
            converted = time.perf_counter()
            new.open().load(line[:n_tokens], [made])
            restores.append(time.perf_counter() - converted)
            converts.append(converted - began)
            reads.append(read_s)
        expected = rows(exact, read(exact, line[:n_tokens])[0], line, n_tokens)
        errors = [error(rows(new, each, line, n_tokens), expected) for each in (made, native)]
    finally:
        for backend in (exact, old, new):
            backend.close()
    ratios = [r / (c + p) for r, c, p in zip(reads, converts, restores, strict=True)]
    return Result(
        path.stem, n_tokens, before, after,
        *(statistics.median(each) for each in (reads, converts, restores, ratios)),
        len(state) / 2**20, *errors,
    )  # fmt: skip


def opened(configuration: Configuration, kind: KVTypeName, log: NativeLog) -> LlamaCppBackend:
    return LlamaCppBackend(replace(configuration, type_k=kind, type_v=kind), log)


def text(backend: LlamaCppBackend, n_tokens: int) -> list[int]:
    words = " ".join(f"Row {n}: {n * 7919 % 1009} parts of {n * 31 % 97}." for n in range(n_tokens))
    tokens = backend.vocabulary.tokenize(words, add_special=True, parse_special=False)
    return tokens[:n_tokens]


def read(backend: LlamaCppBackend, tokens: list[int]) -> tuple[bytes, float]:
    """The state of tokens, and how long computing them took."""
    sequence = backend.open()
    sequence.crop(0)
    began = time.perf_counter()
    for start in range(0, len(tokens), backend.n_batch):
        sequence.prefill(tokens[start : start + backend.n_batch])
    elapsed_s = time.perf_counter() - began
    return bytes(sequence.save()), elapsed_s


def rows(
    backend: LlamaCppBackend, state: bytes, line: list[int], n_tokens: int
) -> NDArray[np.float32]:
    sequence: Sequence = backend.open()
    sequence.load(line[:n_tokens], [state])
    return np.stack([sequence.decode(token).logits[0].copy() for token in line[n_tokens:]])


def error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def line(result: Result) -> str:
    return (
        f"{result.model:28.28} {result.n_tokens:6} {result.type_before:>6} → "
        f"{result.type_after:6} read {result.read_s:7.2f} s  convert {result.convert_s:6.3f} s  "
        f"restore {result.restore_s:6.3f} s  {result.ratio:6.1f}x quicker  "
        f"rows {100 * result.error_requantised:.2f} % / {100 * result.error_native:.2f} %"
    )


if __name__ == "__main__":
    main()
