"""The second turn of a chat, and Esc in a prefill.

    python benchmarks/turns.py MODEL [--runs 5]

Second turn: time to first token behind a first turn of about 1,000 tokens that the cache still
holds, against the same prompt prefilled whole. Esc: from asking to stop to the finished event, at
different moments of a prefill of about 4,000 tokens.
"""

import argparse
import random
import statistics
import time
from collections import deque
from pathlib import Path

from common import ask, load

from engine.configuration import PredictorName, SpeculationSettings
from engine.events import Finished, PromptProgress
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest, Message

SENTENCE = "The keeper wrote down every passing ship, its flag, its course and the weather. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    engine = load(
        options.model,
        n_ctx=8192,
        n_threads=options.threads,
        speculation=SpeculationSettings(predictor=PredictorName.OFF),
    )
    second_turn(engine, options.runs)
    stop_in_prefill(engine, 2 * options.runs)
    engine.client.close()


def second_turn(engine: BlockingClient, runs: int) -> None:
    first_message = Message("user", SENTENCE * 60)
    ratios, reused_s, whole_s = [], [], []
    for _ in range(runs):
        forget(engine)
        first = ask(engine, GenerationRequest(messages=(first_message,), max_tokens=16))
        answer = Message("assistant", first.text, first.token_ids, first.vocabulary_id)
        turn = (first_message, answer, Message("user", "And in winter?"))
        request = GenerationRequest(messages=turn, max_tokens=4)
        second = ask(engine, request).stats
        forget(engine)
        whole = ask(engine, request).stats
        assert second.first_token_s is not None
        assert whole.first_token_s is not None
        reused_s.append(second.first_token_s)
        whole_s.append(whole.first_token_s)
        ratios.append(second.first_token_s / whole.first_token_s)
    print(f"second turn: {second.n_reused} of {second.n_prompt} tokens reused")
    print(f"  first token {1e3 * statistics.median(reused_s):8.1f} ms")
    print(f"  whole again {1e3 * statistics.median(whole_s):8.1f} ms")
    print(f"  ratio       {statistics.median(ratios):8.3f} (median of {runs} pairs)")


def stop_in_prefill(engine: BlockingClient, runs: int) -> None:
    rng = random.Random(1)
    latencies = []
    for _ in range(runs):
        forget(engine)
        events = engine.reply(GenerationRequest(messages=(Message("user", SENTENCE * 250),)))
        assert any(isinstance(event, PromptProgress) for event in events)
        time.sleep(rng.uniform(0.1, 3.0))
        asked = time.monotonic()
        engine.client.stop()
        (finished,) = deque(events, maxlen=1)
        latencies.append(time.monotonic() - asked)
        assert isinstance(finished, Finished)
        assert finished.stats.n_emitted == 0, "the prefill was over before the stop"
    print(f"stop in a prefill of {finished.stats.n_prompt} tokens, {runs} times:")
    print(
        f"  median {1e3 * statistics.median(latencies):.0f} ms, most {1e3 * max(latencies):.0f} ms"
    )


def forget(engine: BlockingClient) -> None:
    ask(engine, GenerationRequest(raw_prompt="Something else.", max_tokens=1))


if __name__ == "__main__":
    main()
