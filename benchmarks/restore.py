"""Whether restored states give the very same logits, and what saving and restoring takes.

    python benchmarks/restore.py MODEL... [--tokens 2000] [--rows 64] [--threads 2]

For each model three tables:

1. Equality. A line of `--tokens` tokens is decoded and saved, `--rows` more tokens are decoded one
   by one; then the state is restored, and the logits of the same tokens are compared bit by bit:
   `whole` in one piece, `slices` in four, `branch` at two thirds with other tokens behind (where
   states cannot be cut: other tokens behind the whole), `restart` in a new process. Once for one
   sequence alone and once for the third of four, each in cells of its own.
2. Times, medians of `--repeats`: taking a state out (get), taking out its last 100 tokens (end),
   restoring it from eight stretches (parts) and in one piece (set), for 600 tokens and `--tokens`.
3. Decoding one token behind 600, medians of `--rows`, taken in turns: in a context of one sequence
   and as one of four with cells of their own.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Sequence, rewind
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration, FlashAttention, KVTypeName

Rows = NDArray[np.float32]
KINDS: tuple[tuple[KVTypeName, FlashAttention], ...] = (
    ("f16", "on"),
    ("f16", "off"),
    ("q8_0", "on"),
    ("q4_0", "on"),
)
FLASH: tuple[FlashAttention, ...] = ("on", "off")
N_SLOTS = 4
N_BATCH = 512
N_NEIGHBOUR = 200


@dataclass(frozen=True, slots=True)
class Case:
    """What a context is opened with."""

    model: Path
    kind: KVTypeName
    flash_attention: FlashAttention
    n_tokens: int
    n_threads: int
    n_sequences: int = 1

    def open(self) -> LlamaCppBackend:
        n_cells = -(-(self.n_tokens + 512) // 256) * 256
        settings = Configuration(
            self.model.resolve(),
            n_ctx=n_cells * self.n_sequences,
            n_gpu_layers=0,
            n_batch=N_BATCH,
            n_ubatch=N_BATCH,
            type_k=self.kind,
            type_v=self.kind,
            flash_attention=self.flash_attention,
            n_threads=self.n_threads,
            n_slots=self.n_sequences,
        )
        return LlamaCppBackend(settings, NativeLog())


def main() -> None:
    options = parsed()
    for model in options.models:
        print(f"\n{model.name}, {options.tokens} tokens, {options.threads} threads")
        if not options.only or "equality" in options.only:
            tell_equality(model, options)
        if not options.only or "times" in options.only:
            tell_times(model, options)
        if not options.only or "decoding" in options.only:
            tell_decoding(model, options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=["equality", "times", "decoding"])
    return parser.parse_args()


def line(n: int, seed: int = 0) -> list[int]:
    """Tokens that any model knows, never the same twice in a row."""
    return [int(token) for token in np.random.default_rng(seed).integers(100, 20_000, n)]


def read(sequence: Sequence, tokens: list[int]) -> None:
    """Hold these tokens, of which the sequence holds the first."""
    for start in range(len(sequence.tokens), len(tokens), N_BATCH):
        sequence.prefill(tokens[start : min(start + N_BATCH, len(tokens))])


def rows(sequence: Sequence, n: int) -> Rows:
    """The logits behind n more tokens, decoded one by one."""
    return np.stack([sequence.decode(token).logits[0].copy() for token in line(n, 1)])


def tell_equality(model: Path, options: argparse.Namespace) -> None:
    print(f"\nequality of {options.rows} rows")
    print("  K/V   flash  cells     " + "  ".join(f"{name:>6}" for name in COLUMNS))
    for kind, flash_attention in KINDS:
        for n_sequences in (1, N_SLOTS):
            case = Case(model, kind, flash_attention, options.tokens, options.threads, n_sequences)
            found = dict(compare(case, options.rows))
            cells = "alone" if n_sequences == 1 else f"1 of {n_sequences}"
            told = "  ".join(f"{found.get(name, '-'):>6}" for name in COLUMNS)
            print(f"  {kind:5} {flash_attention:5}  {cells:8}  {told}", flush=True)


COLUMNS = ("whole", "slices", "branch", "restart")


def compare(case: Case, n_rows: int) -> Iterator[tuple[str, str]]:
    """Each way to restore, and whether its rows were the same."""
    backend = case.open()
    neighbours = [backend.open() for _ in range(case.n_sequences - 1)]
    for neighbour in neighbours[:1]:
        read(neighbour, line(N_NEIGHBOUR, 2))
    sequence = backend.open()
    tokens = line(case.n_tokens)
    read(sequence, tokens)
    state = bytes(sequence.save())
    expected = rows(sequence, n_rows)

    def again(tokens: list[int], states: list[bytes], expected: Rows) -> str:
        sequence.load(tokens, states)
        return verdict(expected, rows(sequence, n_rows))

    yield "whole", again(tokens, [state], expected)
    n_shared = 2 * case.n_tokens // 3 if backend.can_slice else case.n_tokens
    other = tokens[:n_shared] + line(40, 3)
    sequence.load(tokens, [state])
    rewind(sequence, other)
    read(sequence, other)
    branch = bytes(sequence.save())
    branched = rows(sequence, n_rows)
    if backend.can_slice:
        parts = stretches(backend, state, case.n_tokens, 4)
        yield "slices", again(tokens, parts, expected)
        front, _ = backend.split_state(state, n_shared)
        _, back = backend.split_state(branch, n_shared)
        yield "branch", again(other, [front, back], branched)
    else:
        yield "branch", again(other, [branch], branched)
    for one in (*neighbours, sequence):
        one.close()
    backend.close()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        fresh = pool.apply(restored_rows, (case, state, n_rows))
    yield "restart", verdict(expected, fresh)


def restored_rows(case: Case, state: bytes, n_rows: int) -> Rows:
    """The rows behind a state, in a process that has never decoded its tokens."""
    backend = case.open()
    backend.warm_up()
    sequence = backend.open()
    sequence.load(line(case.n_tokens), [state])
    found = rows(sequence, n_rows)
    backend.close()
    return found


def stretches(backend: LlamaCppBackend, state: bytes, n_tokens: int, n: int) -> list[bytes]:
    """Cut a state of this many tokens into n stretches of about the same length."""
    parts = []
    for _ in range(n - 1):
        part, state = backend.split_state(state, n_tokens // n)
        parts.append(part)
    return [*parts, state]


def verdict(expected: Rows, found: Rows) -> str:
    """Say `equal`, or the first row that differs."""
    differ = [n for n in range(len(expected)) if not np.array_equal(expected[n], found[n])]
    return "equal" if not differ else f"row {differ[0]}"


def tell_times(model: Path, options: argparse.Namespace) -> None:
    print("\n  tokens  K/V   flash       bytes    get ms  end ms  parts ms  set ms")
    for kind, flash_attention in KINDS:
        case = Case(model, kind, flash_attention, options.tokens, options.threads)
        backend = case.open()
        sequence = backend.open()
        for n_tokens in sorted({min(600, case.n_tokens), case.n_tokens}):
            read(sequence, line(case.n_tokens)[:n_tokens])
            told = times(backend, sequence, options.repeats)
            print(f"  {n_tokens:6}  {kind:5} {flash_attention:5}  {told}", flush=True)
        backend.close()


def times(backend: LlamaCppBackend, sequence: Sequence, repeats: int) -> str:
    tokens = list(sequence.tokens)
    state = bytes(sequence.save())
    get_s = median(sequence.save, repeats)
    set_s = median(lambda: sequence.load(tokens, [state]), repeats)
    size = f"{len(state):10,}"
    if not backend.can_slice:
        return f"{size}  {1e3 * get_s:8.1f}       -         -  {1e3 * set_s:6.1f}"
    parts = stretches(backend, state, len(tokens), 8)
    end_s = median(lambda: sequence.save(len(tokens) - 100), repeats)
    parts_s = median(lambda: sequence.load(tokens, parts), repeats)
    return (
        f"{size}  {1e3 * get_s:8.1f}  {1e3 * end_s:6.1f}  {1e3 * parts_s:8.1f}  {1e3 * set_s:6.1f}"
    )


def tell_decoding(model: Path, options: argparse.Namespace) -> None:
    print("\n  flash   alone ms  1 of 4 ms")
    depth = min(600, options.tokens)
    for flash_attention in FLASH:
        backends = [
            Case(model, "f16", flash_attention, depth, options.threads, n).open()
            for n in (1, N_SLOTS)
        ]
        sequences = [backend.open() for backend in backends]
        samples: list[list[float]] = [[], []]
        for sequence in sequences:
            read(sequence, line(depth))
        for token in line(options.rows, 1):
            for sequence, times_s in zip(sequences, samples, strict=True):
                times_s.append(median(lambda: sequence.decode(token), 1))  # noqa: B023 - called here
        for backend in backends:
            backend.close()
        alone, separate = (1e3 * statistics.median(times_s) for times_s in samples)
        print(f"  {flash_attention:5}  {alone:9.2f}  {separate:9.2f}", flush=True)


def median(work: Callable[[], object], repeats: int) -> float:
    """The median of the seconds that something takes."""
    samples = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


if __name__ == "__main__":
    main()
