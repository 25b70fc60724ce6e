"""Look-up or suffixes against plain decoding, on our own input-grounded prompts.

    python benchmarks/lookup.py MODEL [--predictor lookup|suffix|combined] [--controller fixed]
        [--pairs 3] [--tokens 128] [--length 3] [--pattern 5]

Greedy; runs alternate and the ratio of decode speeds is taken pair by pair, its median per prompt.
A reply that ends in a loop (its last tokens repeat a period three times) is excluded and counted:
look-up is at its best there, and nobody wants that text.
"""

import argparse
import statistics
from pathlib import Path

from batch_curve import measure_curve
from common import ask, load, tokens_per_second

from app.bench.numbers import loops
from app.bench.prompt_sets import Prompt, read_set
from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.requests import GenerationRequest, Message
from engine.worker_client import WorkerClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--predictor", type=PredictorName, default=PredictorName.LOOKUP)
    parser.add_argument("--controller", type=ControllerName, default=ControllerName.FIXED)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--pattern", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    client = load(options.model, n_ctx=4096, n_threads=options.threads)
    plain = SpeculationSettings(predictor=PredictorName.OFF)
    drafting = SpeculationSettings(
        predictor=options.predictor,
        controller=options.controller,
        n_draft=options.length,
        lookup_pattern_min=options.pattern,
    )
    print(f"{'prompt':22} {'tokens':>6} {'reply':>5} {'accept':>6} {'ratio':>6}  text")
    kept = [
        ratio
        for prompt in read_set("grounded")
        if (ratio := compare(client, prompt, plain, drafting, options)) is not None
    ]
    client.close()
    if kept:
        print(f"geometric mean of {len(kept)}: {statistics.geometric_mean(kept):.3f}")
    print("\nbatch curve (ms, ratio to one token):")
    for n, seconds, ratio in measure_curve(options.model, options.threads):
        print(f"{n:4d} {1e3 * seconds:8.2f} {ratio:6.2f}")


def compare(
    client: WorkerClient,
    prompt: Prompt,
    plain: SpeculationSettings,
    drafting: SpeculationSettings,
    options: argparse.Namespace,
) -> float | None:
    request = GenerationRequest(
        messages=(Message("user", prompt.text),),
        max_tokens=options.tokens,
    )
    ratios, same = [], []
    for _ in range(options.pairs):
        client.set_speculation(plain)
        slow = ask(client, request)
        client.set_speculation(drafting)
        fast = ask(client, request)
        ratios.append(tokens_per_second(fast) / tokens_per_second(slow))
        same.append(slow.token_ids == fast.token_ids)
    ratio = statistics.median(ratios)
    excluded = loops(slow.token_ids)
    verdict = "loops, excluded" if excluded else ("same" if all(same) else "parts from plain")
    accepted = fast.stats.n_accepted / max(1, fast.stats.n_verified)
    print(
        f"{prompt.name:22} {fast.stats.n_prompt:6d} "
        f"{len(fast.token_ids):5d} {accepted:6.0%} {ratio:6.2f}  {verdict}",
        flush=True,
    )
    return None if excluded else ratio


if __name__ == "__main__":
    main()
