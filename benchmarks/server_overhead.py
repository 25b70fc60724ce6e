"""What kvchat takes of a llama-server's speed: its own tokens per second, asked bare and by kvchat.

    python server_overhead.py http://127.0.0.1:8080 --pairs 8 --tokens 200

Both sides ask for the same greedy reply and read it as a stream, in turns, the order changing from
pair to pair; the bare side is a socket that is read to its end. Two figures: the server's own
`predicted_per_second`, which says what reading takes from it, and the tokens over the time from the
request to the end of the reply as the reader has it, which says what a reader waits.
"""

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from engine.configuration import Configuration, SamplingSettings
from engine.events import Finished
from engine.process.blocking_client import BlockingClient
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest

PROMPT = "Once upon a time in a small town by the sea, there lived"


class Speed(NamedTuple):
    """Tokens per second of one reply."""

    of_server: float
    as_read: float


def bare(url: str, n_tokens: int) -> Speed:
    """A reply that is read and thrown away."""
    body = {"prompt": PROMPT, "n_predict": n_tokens, "temperature": 0.0, "stream": True,
            "samplers": ["temperature"], "cache_prompt": True, "ignore_eos": False}  # fmt: skip
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        last = answer.read().strip().rsplit(b"data: ", 1)[-1]
    elapsed_s = time.perf_counter() - began
    timings = json.loads(last)["timings"]
    return Speed(timings["predicted_per_second"], timings["predicted_n"] / elapsed_s)


def by_kvchat(engine: BlockingClient, n_tokens: int) -> Speed:
    """The same reply by kvchat's worker and client."""
    request = GenerationRequest(
        raw_prompt=PROMPT, sampling=SamplingSettings(), max_tokens=n_tokens, seed=1
    )
    began = time.perf_counter()
    *_, finished = engine.reply(request)
    elapsed_s = time.perf_counter() - began
    assert isinstance(finished, Finished)
    assert finished.stats.decode_tps is not None
    return Speed(finished.stats.decode_tps, len(finished.token_ids) / elapsed_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    asked = parser.parse_args()
    client = WorkerClient(log_path=Path(tempfile.mkdtemp()) / "worker.log")
    try:
        engine = BlockingClient(client, limit_s=600)
        engine.load(Configuration.at_server(asked.url))
        sides = (lambda: bare(asked.url, asked.tokens), lambda: by_kvchat(engine, asked.tokens))
        for side in sides:
            side()  # warms up
        taken: list[tuple[float, float]] = []
        for pair in range(asked.pairs):
            speeds = {index: sides[index]() for index in ((1, 0) if pair % 2 else (0, 1))}
            of_bare, ours = speeds[0], speeds[1]
            taken.append(
                (1 - ours.of_server / of_bare.of_server, 1 - ours.as_read / of_bare.as_read)
            )
            print(
                f"server {of_bare.of_server:7.2f} bare {ours.of_server:7.2f} kvchat, "
                f"as read {of_bare.as_read:7.2f} bare {ours.as_read:7.2f} kvchat"
            )
        for name, shares in zip(
            ("of the server", "as read"), zip(*taken, strict=True), strict=True
        ):
            spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
            print(f"{name}: takes {statistics.median(shares):+.2%}, spread {spread:.2%}")
    finally:
        client.close()


if __name__ == "__main__":
    main()
