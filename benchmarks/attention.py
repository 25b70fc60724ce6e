"""Attention on the processor, with llama.cpp's flash attention and with a table of scores.

    ../.venv/bin/python attention.py MODEL [MODEL ...] [--tokens 2000] [--threads 2] [--pairs 7]
        [--ubatch 512]

Two contexts of the same model hold the same tokens. Batches of unlike sizes behind them are
computed in both, one right after the other, in an order that turns; the table gives medians, and
the median of the ratios of pairs. `engine/planning/resolve.py` draws its rule from this.
Below stand the most rows of a batch that come out to the bit as each comes out alone; with
`--ubatch 1`, the reference, rows are computed alone in any batch.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.sequence import LlamaCppSequence
from engine.configuration import Configuration

SIZES = (1, 2, 4, 8, 16)
WAYS = ("on", "off")
ROWS = 128
"""Tokens beside those that are held, at least."""


def main() -> None:
    options = parsed()
    for path in options.models:
        compare(path, options.tokens, options.threads, options.pairs, options.ubatch)


def compare(path: Path, n_tokens: int, n_threads: int, n_pairs: int, n_ubatch: int) -> None:
    """Print the times of one model."""
    log = NativeLog()
    n_ctx = n_tokens + ROWS + -(n_tokens + ROWS) % 256
    settings = Configuration(path.resolve(), n_ctx=n_ctx, n_threads=n_threads, n_ubatch=n_ubatch)
    backends = {way: opened(settings, way, log) for way in WAYS}
    sequences = {way: backend.open() for way, backend in backends.items()}
    tokens = [7 + 13 * index % 997 for index in range(n_tokens + ROWS)]
    prompts = [prompt_times(sequences, backends, tokens[:n_tokens], turn) for turn in range(3)]
    times: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    for turn in range(n_pairs):
        for size in SIZES:
            rows = tokens[n_tokens : n_tokens + size]
            times[size].append(
                {way: batch_time(sequences[way], rows) for way in turned(WAYS, turn)}
            )
    report(path, n_tokens, prompts, times)
    exact = (str(exact_rows(sequences[way], tokens[n_tokens:])) for way in WAYS)
    print(f"  {'exact rows':14}{'':>3}{next(exact):>7}{'':>3}{next(exact):>7}")
    for backend in backends.values():
        backend.close()


def opened(settings: Configuration, way: str, log: NativeLog) -> LlamaCppBackend:
    return LlamaCppBackend(replace(settings, flash_attention=way), log)  # type: ignore[arg-type]


def prompt_times(
    sequences: dict[str, LlamaCppSequence],
    backends: dict[str, LlamaCppBackend],
    tokens: Sequence[int],
    turn: int,
) -> dict[str, float]:
    """Read the prompt anew in both contexts, and give the seconds."""
    times = {}
    for way in turned(WAYS, turn):
        sequences[way].crop(0)
        started = time.perf_counter()
        for start in range(0, len(tokens), backends[way].n_batch):
            sequences[way].prefill(tokens[start : start + backends[way].n_batch])
        sequences[way].decode(tokens[0])
        times[way] = time.perf_counter() - started
        sequences[way].crop(len(tokens))
    return times


def batch_time(sequence: LlamaCppSequence, rows: Sequence[int]) -> float:
    """Compute a batch twice, and give the seconds of the second time."""
    n_held = len(sequence.tokens)
    for _ in range(2):
        sequence.crop(n_held)
        started = time.perf_counter()
        sequence.verify(rows)
        elapsed_s = time.perf_counter() - started
    sequence.crop(n_held)
    return elapsed_s


def exact_rows(sequence: LlamaCppSequence, tokens: Sequence[int]) -> int:
    """The most rows of a batch that are to the bit what each of them is alone."""
    n_held, rows = len(sequence.tokens), tokens[: max(SIZES) + 1]
    alone = [sequence.verify([token]).logits[0].copy() for token in rows]
    sequence.crop(n_held)
    for size in range(2, len(rows) + 1):
        logits = sequence.verify(rows[:size]).logits
        is_exact = all(map(np.array_equal, logits, alone[:size]))
        sequence.crop(n_held)
        if not is_exact:
            return size - 1
    return len(rows)


def turned(ways: tuple[str, ...], turn: int) -> tuple[str, ...]:
    return ways if turn % 2 == 0 else ways[::-1]


def report(
    path: Path,
    n_tokens: int,
    prompts: list[dict[str, float]],
    times: dict[int, list[dict[str, float]]],
) -> None:
    print(f"\n{path.name}, behind {n_tokens} tokens")
    print(
        f"  {'':14}{'flash':>10}{'table':>10}{'table / flash':>15}   batch curve, flash and table"
    )
    print_row("prompt", prompts, "")
    plain = {way: statistics.median(pair[way] for pair in times[1]) for way in WAYS}
    for size, pairs in times.items():
        curve = (statistics.median(pair[way] for pair in pairs) / plain[way] for way in WAYS)
        print_row(f"{size} tokens", pairs, "   ".join(f"{factor:5.2f}" for factor in curve))


def print_row(name: str, pairs: list[dict[str, float]], end: str) -> None:
    on, off = (1e3 * statistics.median(pair[way] for pair in pairs) for way in WAYS)
    ratio = statistics.median(pair["off"] / pair["on"] for pair in pairs)
    print(f"  {name:14}{on:7.1f} ms{off:7.1f} ms{ratio:15.2f}   {end}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--ubatch", type=int, default=512)
    return parser.parse_args()


if __name__ == "__main__":
    main()
