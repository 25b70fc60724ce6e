"""What a round costs with the predictors that read the chat, on lines of 1,000 and 100,000 tokens.

    python benchmarks/predictors.py [--rounds 2000]

No model is needed. A line is drawn from 4,000 tokens by Zipf's law and quotes itself now and then,
as a chat about a document does; the last one says the same two tokens over and over, the worst that
an index can meet. The combined predictor has past replies of 32,768 tokens besides. `index` is the
time of the first reply's line, `again` that of the next reply's, which is 200 tokens longer. A
round proposes eight tokens and commits three.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from itertools import islice

from engine.clock import Stopwatch
from engine.configuration import PredictorName, SpeculationSettings
from engine.speculation.predictor_pool import look_up, suffixes
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.suffix import PastRepliesPredictor

READERS = [name for name in PredictorName if SpeculationSettings(name).drafts_from_text]
N_VOCAB, QUOTED = 4000, 40
N_PAST, N_PAST_TOKENS = 64, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    lines = {
        "1,000": quoting_line(1_000),
        "100,000": quoting_line(100_000),
        "100,000 of two": [5, 6] * 50_000,
    }
    print(f"{'predictor':14} {'line':15} {'index':>9} {'again':>9} {'median':>9} {'p95':>9}")
    for name in READERS:
        for label, line in lines.items():
            index_s, again_s, rounds_s = measure(name, line, options.rounds)
            percentiles = statistics.quantiles(rounds_s, n=20)
            print(
                f"{name:14} {label:15} {1e3 * index_s:6.1f} ms {1e3 * again_s:6.1f} ms "
                f"{1e6 * percentiles[9]:6.0f} µs {1e6 * percentiles[18]:6.0f} µs"
            )


def measure(
    name: PredictorName, line: Sequence[int], n_rounds: int
) -> tuple[float, float, list[float]]:
    """The seconds of indexing, of indexing a longer line, and of each round."""
    more = quoting_line(200 + 3 * n_rounds)
    past = quoting_line(N_PAST * N_PAST_TOKENS, seed=2)
    watch = Stopwatch()
    predictor = made(name, past)
    predictor.reset(line)
    index_s = watch.split()
    predictor.reset([*line, *more[:200]])
    again_s = watch.split()
    rounds_s = []
    for start in range(200, len(more), 3):
        watch.split()
        list(islice(predictor.propose(), 8))
        predictor.commit(more[start : start + 3])
        rounds_s.append(watch.split())
    return index_s, again_s, rounds_s


def made(name: PredictorName, past: list[int]) -> Predictor:
    settings = SpeculationSettings(name)
    if name is PredictorName.LOOKUP:
        return look_up(settings)
    if name is PredictorName.SUFFIX:
        return suffixes(settings)
    replies = [past[n * N_PAST_TOKENS :][:N_PAST_TOKENS] for n in range(N_PAST)]
    return PastRepliesPredictor(replies, min_confidence=settings.suffix_min_confidence)


def quoting_line(n_tokens: int, *, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(N_VOCAB)]
    line = rng.choices(range(N_VOCAB), weights, k=QUOTED)
    while len(line) < n_tokens:
        if rng.random() < 0.5:
            start = rng.randrange(max(0, len(line) - 2000), len(line))
            line += line[start : start + QUOTED]
        else:
            line += rng.choices(range(N_VOCAB), weights, k=QUOTED)
    return line[:n_tokens]


if __name__ == "__main__":
    main()
