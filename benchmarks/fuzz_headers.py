"""Reads many damaged headers and estimates those that can be read.

    ../.venv/bin/python fuzz_headers.py [--cases 200000] [--seed 1] [--large-share 0.01]

It fails if anything but kvchat's own errors is raised, if one case takes a second of CPU, or if
memory grows by 256 MiB. A case that fails is written to the current folder.
"""

import argparse
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzzed_headers import Case, Seed, damaged, large_seed, outcome, small_seeds

LIMIT_S = 1.0
LIMIT_BYTES = 256 << 20
ENTRIES = (
    "llama-3.2-1b", "qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-2-9b", "gemma-3-1b",
    "gemma-3n-e4b", "gemma-4-e4b", "deepseek-v2-lite", "granite-4.0-h-tiny", "lfm2-1.2b",
    "mamba-2.8b", "jamba-mini", "falcon-h1-7b", "plamo-2-8b", "rwkv-7-world-2.9b",
    "kimi-linear-48b-a3b",
    "qwen3-next-80b-a3b", "llama-4-scout", "deepseek-v3.2", "glm-4.5-air", "exaone-4.0-32b",
    "minicpm3-4b",
)  # fmt: skip
SIZES_OF_VOCABULARY = (50_000, 152_064, 262_144)


def main() -> None:
    options = _options()
    seeds = small_seeds(_known(ENTRIES))
    large = [large_seed(size) for size in SIZES_OF_VOCABULARY]
    n_large = round(options.cases * options.large_share)
    print(f"{len(seeds)} small seeds, {len(large)} of large vocabularies")
    counts: Counter[str] = Counter()
    failures = 0
    slowest = (0.0, "")
    before = _peak_bytes()
    started = time.perf_counter()
    for number, case in enumerate(_cases(seeds, large, options.cases - n_large, n_large, options)):
        told, elapsed_s = _read(case, number)
        failures += told == "failed"
        counts[told] += 1
        counts[f"  {case.damage}: {told}"] += 1
        slowest = max(slowest, (elapsed_s, f"{case.damage} of {case.seed}"))
        if number % 10_000 == 0:
            print(
                f"{number:>8} in {time.perf_counter() - started:.0f} s: "
                f"{counts['refused']} refused, {counts['estimated']} estimated, "
                f"{failures} failed, slowest "
                f"{slowest[0] * 1e3:.0f} ms, {(_peak_bytes() - before) / 2**20:.0f} MiB grown",
                flush=True,
            )
    grown = _peak_bytes() - before
    for name in sorted(counts):
        print(f"{counts[name]:>8} {name}")
    print(f"slowest {slowest[0] * 1e3:.0f} ms ({slowest[1]}), memory grew {grown / 2**20:.0f} MiB")
    if failures or slowest[0] > LIMIT_S or grown > LIMIT_BYTES:
        sys.exit(f"{failures} cases failed, or one was too slow or too large")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large-share", type=float, default=0.01)
    return parser.parse_args()


def _known(names: Sequence[str]) -> list[str]:
    from engine.model.catalog import entries

    known = {entry.name for entry in entries()}
    return [name for name in names if name in known]


def _cases(
    small: list[Seed], large: list[Seed], n_small: int, n_large: int, options: argparse.Namespace
) -> Iterator[Case]:
    yield from damaged(small, n_small, options.seed)
    yield from damaged(large, n_large, options.seed + 1)


def _read(case: Case, number: int) -> tuple[str, float]:
    # Of the CPU: on a busy machine the clock says how long others ran.
    started = time.process_time()
    try:
        told = outcome(case)
    except Exception:  # noqa: BLE001  which errors there are is what is asked
        told = "failed"
        Path(f"failed-{number}.gguf").write_bytes(case.data)
        print(f"case {number}: {case.damage} of {case.seed}, {case.nbytes} bytes")
        traceback.print_exc(file=sys.stdout)
    return told, time.process_time() - started


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
