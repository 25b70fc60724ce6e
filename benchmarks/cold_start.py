"""How long a header takes to read, and commands to start, as whole processes.

python benchmarks/cold_start.py MODEL [--runs 15]
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine.model.architecture import read_model

KVCHAT = Path(sys.executable).with_name("kvchat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    model = options.model.resolve()
    n_vocab = read_model(model).architecture.n_vocab
    report(f"header of {n_vocab} tokens", timed(lambda: read_model(model), options.runs))
    for arguments in (
        ["--help"],
        ["plan", str(model)],
        ["plan", str(model), "--json"],
        ["plan", str(model), "--dry-run"],
        ["export", str(model), "--preset", "balanced"],
    ):
        command = [str(KVCHAT), *arguments]
        seconds = timed(lambda command=command: run(command), options.runs)
        report("kvchat " + " ".join(a for a in arguments if a != str(model)), seconds)


def run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=True)


def timed(call: Callable[[], object], runs: int) -> list[float]:
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def report(what: str, seconds: list[float]) -> None:
    median, most = statistics.median(seconds), max(seconds)
    print(f"{what:28} {1e3 * median:7.1f} ms median, {1e3 * most:.1f} ms most")


if __name__ == "__main__":
    main()
