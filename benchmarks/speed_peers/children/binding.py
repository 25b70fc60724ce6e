"""llama-cpp-python: plain decoding and its prompt look-up, over lines of JSON.

Plain decoding has a context of its own: with a draft model the binding keeps the logits of every
token. A reply is timed from its first token, which the prefill brings, to its last.
"""

import json
import os
import sys
import time

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

PATTERN = 2
"""Longest run of tokens that is looked up: the default of the binding."""


class Counting(LlamaPromptLookupDecoding):
    """The binding's look-up, which also counts its rounds and the tokens that it proposed."""

    def __init__(self, num_pred_tokens):
        super().__init__(max_ngram_size=PATTERN, num_pred_tokens=num_pred_tokens)
        self.n_rounds = self.n_drafted = 0

    def __call__(self, input_ids, /, **kwargs):
        draft = super().__call__(input_ids, **kwargs)
        self.n_rounds += 1
        self.n_drafted += len(draft)
        return draft


def open_model(setup, draft_model):
    return llama_cpp.Llama(
        setup["model"],
        n_ctx=setup["n_ctx"],
        n_batch=setup["n_ctx"],  # 0.3.36 has no logits after the first batch of a prompt
        n_threads=setup["n_threads"],
        n_threads_batch=setup["n_threads"],
        flash_attn=True,
        draft_model=draft_model,
        verbose=False,
    )


def answer(model, question, ends, counting):
    tokens, first, last = [], None, None
    max_s = question["max_s"] or float("inf")
    stream = model.generate(
        question["tokens"], temp=question["temperature"], top_k=0, top_p=1.0, min_p=0.0
    )
    for token in stream:
        last = time.perf_counter()
        first = last if first is None else first
        tokens.append(token)
        if token in ends or len(tokens) == question["max_tokens"] or last - first >= max_s:
            break
    stream.close()
    n_steps = max(0, len(tokens) - 1)
    return {
        "tokens": tokens[:-1] if tokens and tokens[-1] in ends else tokens,
        "n_steps": n_steps,
        "elapsed_s": last - first,
        "n_drafted": counting.n_drafted if counting else 0,
        "n_accepted": max(0, n_steps - counting.n_rounds) if counting else 0,
        "n_rounds": counting.n_rounds if counting else n_steps,
    }


def main():
    lines = iter(sys.stdin)
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the binding prints does not disturb the talk
    setup = json.loads(next(lines))
    plain, drafting = open_model(setup, None), open_model(setup, Counting(2))
    ends = frozenset(setup["end_tokens"])
    versions = {"llama-cpp-python": llama_cpp.__version__, "look-up pattern": f"up to {PATTERN}"}
    print(json.dumps({"versions": versions}), file=talk, flush=True)
    for line in lines:
        question = json.loads(line)
        n = question["settings"].get("num_pred_tokens")
        model, counting = (plain, None) if n is None else (drafting, Counting(n))
        model.draft_model = counting
        model.reset()
        model.set_seed(question["seed"])
        print(json.dumps(answer(model, question, ends, counting)), file=talk, flush=True)


if __name__ == "__main__":
    main()
