"""What one `llama_decode` of n tokens costs, with logits of all rows.

python benchmarks/batch_curve.py MODEL [--threads 2] [--depth 512]
"""

import argparse
import statistics
import time
from pathlib import Path

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=512)
    options = parser.parse_args()
    for n, seconds, ratio in measure_curve(options.model, options.threads, options.depth):
        print(f"{n:4d} {1e3 * seconds:8.2f} ms {ratio:6.2f}")


def measure_curve(
    model: Path, n_threads: int, depth: int = 512, repeats: int = 15
) -> list[tuple[int, float, float]]:
    """Give (n, seconds, ratio to one token); sizes alternate, medians are taken."""
    settings = Configuration(model, n_ctx=1024, n_batch=512, n_threads=n_threads)
    backend = LlamaCppBackend(settings, NativeLog())
    sequence = backend.open()
    line = [100 + index % 1000 for index in range(depth + max(SIZES))]
    for start in range(0, depth, backend.n_batch):
        sequence.prefill(line[start : min(depth, start + backend.n_batch)])
    times: dict[int, list[float]] = {n: [] for n in SIZES}
    for _ in range(repeats):
        for n in SIZES:
            start_s = time.perf_counter()
            sequence.verify(line[depth : depth + n])
            times[n].append(time.perf_counter() - start_s)
            sequence.crop(depth)
    backend.close()
    medians = {n: statistics.median(samples) for n, samples in times.items()}
    return [(n, seconds, seconds / medians[1]) for n, seconds in medians.items()]


if __name__ == "__main__":
    main()
