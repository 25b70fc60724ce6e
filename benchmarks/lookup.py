"""Look-up or suffixes against plain decoding, on our own input-grounded prompts.

    python benchmarks/lookup.py MODEL [--predictor lookup|suffix|combined] [--controller fixed]
        [--pairs 3] [--tokens 128] [--length 3] [--pattern 5]

Greedy; runs alternate and the ratio of decode speeds is taken pair by pair, its median per prompt.
A reply that ends in a loop (its last tokens repeat a period three times) is excluded and counted:
look-up is at its best there, and nobody wants that text.
"""

import argparse
import statistics
import tomllib
from pathlib import Path

from batch_curve import measure_curve
from common import ask, load, tokens_per_second

from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.requests import GenerationRequest, Message
from engine.worker_client import WorkerClient

LOOP_TIMES, LEAST_LOOP = 3, 24


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
    print(
        f"{'task':10} {'document':11} {'prompt':>6} {'reply':>5} {'accept':>6} {'ratio':>6}  text"
    )
    kept = [
        ratio
        for prompt in read_prompts()
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
    prompt: dict[str, str],
    plain: SpeculationSettings,
    drafting: SpeculationSettings,
    options: argparse.Namespace,
) -> float | None:
    request = GenerationRequest(
        messages=(Message("user", f"{prompt['instruction']}\n\n{prompt['text']}"),),
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
        f"{prompt['task']:10} {prompt['document']:11} {fast.stats.n_prompt:6d} "
        f"{len(fast.token_ids):5d} {accepted:6.0%} {ratio:6.2f}  {verdict}",
        flush=True,
    )
    return None if excluded else ratio


def loops(token_ids: tuple[int, ...]) -> bool:
    """Whether the reply ends in at least three repetitions of a period, 24 tokens or more of it."""
    for period in range(1, len(token_ids) // LOOP_TIMES + 1):
        n = max(LOOP_TIMES * period, LEAST_LOOP)
        tail = token_ids[-n:]
        if len(tail) == n and all(tail[i] == tail[i - period] for i in range(period, n)):
            return True
    return False


def read_prompts() -> list[dict[str, str]]:
    path = Path(__file__).with_name("prompts") / "grounded.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        {**prompt, "text": data["documents"][prompt["document"]]["text"].strip()}
        for prompt in data["prompts"]
    ]


if __name__ == "__main__":
    main()
