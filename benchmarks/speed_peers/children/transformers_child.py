"""transformers: plain, prompt look-up and assisted generation, over lines of JSON.

The GGUF file is read into 32-bit weights, which is all that transformers can do with it. A reply is
timed from the end of its first round to the end of its last.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList


class Clock(StoppingCriteria):
    """Notes the time and the length at the end of every round; stops when the time is up."""

    def __init__(self, max_s):
        self.marks = []
        self.max_s = max_s or float("inf")

    def __call__(self, input_ids, _scores, **_kwargs):
        self.marks.append((time.perf_counter(), input_ids.shape[1]))
        over = self.marks[-1][0] - self.marks[0][0] >= self.max_s
        return torch.full((input_ids.shape[0],), over, dtype=torch.bool)


def open_model(path):
    model = AutoModelForCausalLM.from_pretrained(
        str(Path(path).parent), gguf_file=Path(path).name, dtype=torch.float32
    )
    return model.eval()


def answer(model, draft, question, ends):
    ids = torch.tensor([question["tokens"]])
    clock = Clock(question["max_s"])
    options = {}
    if n := question["settings"].get("prompt_lookup_num_tokens"):
        options["prompt_lookup_num_tokens"] = n
    if question["settings"].get("assisted"):
        options["assistant_model"] = draft
    if question["temperature"] > 0:
        torch.manual_seed(question["seed"])
        options |= {"do_sample": True, "temperature": question["temperature"], "top_k": 0}
    else:
        options["do_sample"] = False
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=question["max_tokens"],
            eos_token_id=ends,
            pad_token_id=ends[0],
            stopping_criteria=StoppingCriteriaList([clock]),
            **options,
        )
    tokens = out[0, ids.shape[1] :].tolist()
    (first_s, first_n), (last_s, last_n) = clock.marks[0], clock.marks[-1]
    return {
        "tokens": tokens[:-1] if tokens and tokens[-1] in ends else tokens,
        "n_steps": last_n - first_n,
        "elapsed_s": last_s - first_s,
        "n_drafted": None,
        "n_accepted": None,
        "n_rounds": len(clock.marks) - 1,
    }


def main():
    lines = iter(sys.stdin)
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print does not disturb the talk
    setup = json.loads(next(lines))
    if setup["n_threads"]:
        torch.set_num_threads(setup["n_threads"])
    try:
        model = open_model(setup["model"])
        draft = open_model(setup["draft"]) if setup["draft"] else None
    except Exception as error:  # noqa: BLE001  # whatever it raises is the row's text
        reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=talk, flush=True)
        return
    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "weights": "32 bits, from the GGUF file",
    }
    print(json.dumps({"versions": versions}), file=talk, flush=True)
    for line in lines:
        question = json.loads(line)
        try:
            reply = answer(model, draft, question, setup["end_tokens"])
        except Exception as error:  # noqa: BLE001  # as above
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=talk, flush=True)


if __name__ == "__main__":
    main()
