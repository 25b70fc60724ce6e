"""Threads that follow the load against fixed numbers, beside busy processes of its own.

    ../.venv/bin/python threads.py MODEL [--busy 0 1] [--tokens 20 60] [--rounds 9] [--fixed 1 2]

For each number of busy processes (`sha256sum /dev/zero`) and each length every arm makes one reply
in turn: `auto` and each fixed number (one thread, and one for each core). Models are loaded once.
A row has the medians of tokens per second, and the median of the ratios of `auto` to the fixed
numbers, round by round. Beside busy processes one thread for each core is very slow: `--fixed 1`.
Run it on a machine that does nothing else.
"""

import argparse
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from common import ask, load, tokens_per_second

from engine.configuration import PredictorName, SamplingSettings, SpeculationSettings
from engine.memory.hardware import usable_cores
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest

PROMPT = "Once upon a time, in a harbour town with three bakeries, there lived a"
SETTLE_S = 1.0
"""How long a busy process runs before anybody is timed."""
PAUSE_S = 0.3
"""Between two replies, so that nothing of the last one is counted for the next."""
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--tokens", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--fixed", type=int, nargs="+", default=[1, usable_cores()[0]])
    options = parser.parse_args()
    engines = {
        name: load(options.model, n_ctx=2048, n_threads=n, speculation=PLAIN)
        for name, n in (("auto", None), *((str(n), n) for n in options.fixed))
    }
    others = [name for name in engines if name != "auto"]
    titles = [f"{name} threads" if name.isdecimal() else name for name in engines]
    print(f"| busy | tokens | {' | '.join(titles)} | {' | '.join(f'auto / {n}' for n in others)} |")
    print(f"|--:|--:|{'--:|' * (len(engines) + len(others))}")
    for n_busy in options.busy:
        with busy(n_busy):
            for n_tokens in options.tokens:
                rounds = [one_round(engines, n_tokens, n) for n in range(options.rounds)]
                speeds = [f"{median(one[name] for one in rounds):.1f}" for name in engines]
                gains = [f"{median(one['auto'] / one[n] for one in rounds):.2f}" for n in others]
                print(f"| {n_busy} | {n_tokens} | {' | '.join((*speeds, *gains))} |", flush=True)
    for engine in engines.values():
        engine.client.close()


def one_round(engines: dict[str, BlockingClient], n_tokens: int, turn: int) -> dict[str, float]:
    """Tokens per second of one reply of each engine, in an order that turns."""
    names = [*engines]
    start = turn % len(names)
    found = {}
    for name in (*names[start:], *names[:start]):
        time.sleep(PAUSE_S)
        request = GenerationRequest(
            raw_prompt=f"{turn} {PROMPT}",
            max_tokens=n_tokens,
            sampling=SamplingSettings(temperature=0.0),
        )
        found[name] = tokens_per_second(ask(engines[name], request))
    return found


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Processes that take a core each."""
    processes = [
        subprocess.Popen(["sha256sum", "/dev/zero"], stdout=subprocess.DEVNULL) for _ in range(n)
    ]
    try:
        time.sleep(SETTLE_S if n else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
