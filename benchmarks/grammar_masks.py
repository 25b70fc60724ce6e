"""What a grammar costs: the vocabulary once, a grammar once, then each token's mask.

    python -m benchmarks.grammar_masks MODEL.gguf [--tokens 200] [--rounds 5]

Replies under the schemas are made greedily, without drafts; each mask along them is timed apart
from the model, from a matcher that has not seen the place yet. Medians over the rounds.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median

from engine.backends.base import Vocabulary
from engine.clock import Stopwatch
from engine.configuration import Configuration, PredictorName, SamplingSettings, SpeculationSettings
from engine.events import Finished
from engine.grammar.mask import Grammars
from engine.load import load_session
from engine.requests import Cancellation, GenerationRequest, Grammar, Message

N_CTX = 1024
SCHEMAS = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    "any JSON": {"type": "object"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    off = SpeculationSettings(predictor=PredictorName.OFF)
    loaded = load_session(Configuration(options.model, N_CTX, n_threads=1, speculation=off))
    vocabulary = loaded.target.vocabulary
    print(f"{options.model.name}: {vocabulary.n_tokens:,} tokens")
    for name, schema in SCHEMAS.items():
        grammar = Grammar(json.dumps(schema), name=name)
        request = GenerationRequest(
            (Message("user", "Describe a child as JSON."),),
            sampling=SamplingSettings(),
            max_tokens=options.tokens,
            grammar=grammar,
        )
        *_, finished = loaded.session.generate(request, Cancellation())
        assert isinstance(finished, Finished)
        *_, free = loaded.session.generate(replace(request, grammar=None), Cancellation())
        assert isinstance(free, Finished)
        tell(name, grammar, vocabulary, finished.token_ids, options.rounds)
        print(
            f"  reply: {len(finished.token_ids)} tokens, fits: {finished.fits_grammar}; "
            f"{finished.stats.decode_tps or 0:.1f} tokens/s, "
            f"without the grammar {free.stats.decode_tps or 0:.1f}"
        )
    loaded.session.close()


def tell(
    name: str, grammar: Grammar, vocabulary: Vocabulary, tokens: tuple[int, ...], n_rounds: int
) -> None:
    watch = Stopwatch()
    grammars = Grammars(vocabulary)
    grammars.mask(Grammar('start: "a"', is_schema=False), n_before=0)
    vocabulary_s = watch.split()
    grammars.mask(grammar, n_before=0)(())
    compile_s = watch.split()
    times: list[float] = []
    for _ in range(n_rounds):
        mask = grammars.mask(grammar, n_before=0)
        for end in range(len(tokens)):
            watch.split()
            mask(tokens[:end])
            times.append(watch.split())
    times.sort()
    print(
        f"{name}: vocabulary {vocabulary_s:.2f} s, grammar {1e3 * compile_s:.1f} ms, a mask "
        f"{1e6 * median(times):.0f} µs, the slowest of a hundred "
        f"{1e6 * times[int(0.99 * (len(times) - 1))]:.0f} µs"
    )


if __name__ == "__main__":
    main()
