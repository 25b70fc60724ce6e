"""What kvchat takes of a llama-server's speed: its own tokens per second, asked bare and by kvchat.

    python server_overhead.py http://127.0.0.1:8080 --pairs 8 --tokens 200

Both sides ask for the same greedy reply and read it as a stream, in turns, the order changing from
pair to pair; the bare side is a socket that is read to its end. The figure is the server's
`predicted_per_second`.
"""

import argparse
import json
import statistics
import tempfile
import urllib.request
from pathlib import Path

from engine.configuration import Configuration, SamplingSettings
from engine.events import Finished
from engine.process.blocking_client import BlockingClient
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest

PROMPT = "Once upon a time in a small town by the sea, there lived"


def bare_tps(url: str, n_tokens: int) -> float:
    """The server's speed for a reply that is read and thrown away."""
    body = {"prompt": PROMPT, "n_predict": n_tokens, "temperature": 0.0, "stream": True,
            "samplers": ["temperature"], "cache_prompt": True, "ignore_eos": False}  # fmt: skip
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        last = answer.read().strip().rsplit(b"data: ", 1)[-1]
    return float(json.loads(last)["timings"]["predicted_per_second"])


def kvchat_tps(engine: BlockingClient, n_tokens: int) -> float:
    """The server's speed for the same reply by kvchat's worker and client."""
    request = GenerationRequest(
        raw_prompt=PROMPT, sampling=SamplingSettings(), max_tokens=n_tokens, seed=1
    )
    *_, finished = engine.reply(request)
    assert isinstance(finished, Finished)
    assert finished.stats.decode_tps is not None
    return finished.stats.decode_tps


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
        bare_tps(asked.url, asked.tokens), kvchat_tps(engine, asked.tokens)
        shares = []
        for pair in range(asked.pairs):
            if pair % 2:
                bare = bare_tps(asked.url, asked.tokens)
                ours = kvchat_tps(engine, asked.tokens)
            else:
                ours = kvchat_tps(engine, asked.tokens)
                bare = bare_tps(asked.url, asked.tokens)
            shares.append(1 - ours / bare)
            print(f"bare {bare:7.2f}  kvchat {ours:7.2f}  takes {shares[-1]:+.2%}")
        spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
        print(f"median {statistics.median(shares):+.2%}, spread {spread:.2%}")
    finally:
        client.close()


if __name__ == "__main__":
    main()
