"""Eight prompts at once against what the batch curve of eight sequences allows.

python benchmarks/batch.py MODEL [--parallel 8] [--threads 2] [--tokens 96] [--pairs 5]

The curve is one `llama_decode` of n sequences with a token each, at the depth that replies have in
their middle. What it allows is the prompts' time, each read alone, and a step of the curve for each
token. Both are measured in turn, on one context.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.backends.base import Step
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration, PredictorName, SamplingSettings, SpeculationSettings
from engine.events import Finished, TokensCommitted
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest

SUBJECTS = (
    "the sea",
    "a small town",
    "bread",
    "clocks",
    "a bridge",
    "winter",
    "maps",
    "an old dog",
)
N_CTX = 512
REPEATS = 15


@dataclass(frozen=True, slots=True)
class Batch:
    """One run of all prompts."""

    elapsed_s: float
    lengths: tuple[int, ...]
    first_token_s: tuple[float, ...]
    latency_s: tuple[float, ...]

    @property
    def tps(self) -> float:
        return sum(self.lengths) / self.elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--unified", action="store_true", help="one pool of cells, not streams")
    options = parser.parse_args()
    n = options.parallel
    settings = Configuration(
        options.model,
        n_ctx=N_CTX * n,
        n_slots=n,
        kv_unified=options.unified,
        n_threads=options.threads,
    )
    backend = LlamaCppBackend(settings, NativeLog())
    plain = SpeculationSettings(predictor=PredictorName.OFF)
    shares = []
    print(f"{n} at once, {options.threads} threads, {options.tokens} tokens each")
    for pair in range(options.pairs + 1):
        batch = run_batch(Session(backend, ChatTemplate(None), plain), n, options.tokens)
        for sequence in list(backend.opened.values()):
            sequence.close()
        live = live_steps(batch.lengths)
        curve, prompt_s = measure_curve(backend, n, sorted({1, n, *live}), options.tokens)
        allowed_s = n * prompt_s + sum(curve[each] for each in live)
        if not pair:
            continue  # the first one warms up
        shares.append(allowed_s / batch.elapsed_s)
        print(
            f"pair {pair}: one {1 / curve[1]:.1f}, curve of {n} {n / curve[n]:.1f}, "
            f"batch {batch.tps:.1f} tok/s, {shares[-1]:.3f} of what the curve allows; "
            f"first token {statistics.median(batch.first_token_s):.2f} s, "
            f"latency {min(batch.latency_s):.2f} to {max(batch.latency_s):.2f} s"
        )
        steps = " ".join(f"{each}:{seconds / curve[1]:.2f}" for each, seconds in curve.items())
        print(f"        steps in plain steps {steps}", flush=True)
    print(f"median share {statistics.median(shares):.3f}")
    backend.close()


def prompts(n: int) -> list[str]:
    return [
        f"Here is a long story about {SUBJECTS[index % len(SUBJECTS)]}, told in part {index}."
        for index in range(n)
    ]


def live_steps(lengths: Sequence[int]) -> list[int]:
    """Replies that still need a token in each step; the first tokens come with the prompts."""
    return [sum(length > step for length in lengths) for step in range(1, max(lengths))]


def measure_curve(
    backend: LlamaCppBackend, n_most: int, sizes: Sequence[int], n_tokens: int
) -> tuple[dict[int, float], float]:
    """Seconds of a step by its number of sequences, and of one prompt; medians."""
    sequences = [backend.open() for _ in range(n_most)]
    lines = [
        backend.vocabulary.tokenize(text, add_special=True, parse_special=False)
        for text in prompts(n_most)
    ]
    prompt_s = []
    for sequence, line in zip(sequences, lines, strict=True):
        began = time.perf_counter()
        sequence.verify(line[-1:], unread=line[:-1])
        prompt_s.append(time.perf_counter() - began)
        filler = (line * n_tokens)[: n_tokens // 2]
        sequence.prefill(filler)
    depths = [len(sequence.tokens) for sequence in sequences]
    times: dict[int, list[float]] = {live: [] for live in sizes}
    for _ in range(REPEATS):
        for live in sizes:
            steps = [Step(sequence, (100,)) for sequence in sequences[:live]]
            for is_timed in (False, True):  # the first one builds the graph for its size
                began = time.perf_counter()
                backend.verify_batch(steps)
                if is_timed:
                    times[live].append(time.perf_counter() - began)
                for sequence, depth in zip(sequences, depths, strict=True):
                    sequence.crop(depth)
    for sequence in sequences:
        sequence.close()
    curve = {live: statistics.median(samples) for live, samples in times.items()}
    return curve, statistics.median(prompt_s)


def run_batch(session: Session, n: int, n_tokens: int) -> Batch:
    """All prompts at once, each with a seed of its own."""
    warm = SamplingSettings(temperature=0.8, top_k=40)
    began = time.perf_counter()
    generations = [
        session.begin(
            GenerationRequest(raw_prompt=text, sampling=warm, max_tokens=n_tokens, seed=index),
            Cancellation(),
        )
        for index, text in enumerate(prompts(n))
    ]
    lengths, firsts, latencies = [0] * n, [0.0] * n, [0.0] * n
    while not all(one.is_over for one in generations):
        session.step()
        for index, one in enumerate(generations):
            for event in one.take():
                if isinstance(event, TokensCommitted):
                    firsts[index] = firsts[index] or time.perf_counter() - began
                    lengths[index] += len(event.tokens)
                if isinstance(event, Finished):
                    latencies[index] = time.perf_counter() - began
    return Batch(time.perf_counter() - began, tuple(lengths), tuple(firsts), tuple(latencies))


if __name__ == "__main__":
    main()
