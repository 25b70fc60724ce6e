"""transformers on a GGUF file: logits and greedy replies, asked for by lines of JSON."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Clock:
    """Notes when each token came."""

    def __init__(self):
        self.marks = []

    def put(self, value):
        self.marks.append((time.perf_counter(), value.numel()))

    def end(self):
        pass


def generate(model, question):
    ids = torch.tensor([question["tokens"]])
    clock = Clock()
    n_new = question["n_new"]
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n_new,
        do_sample=False,
        pad_token_id=0,
        streamer=clock,
    )
    (first_s, _), (last_s, _) = clock.marks[1], clock.marks[-1]  # the prompt is put first
    tokens = out[0, ids.shape[1] :].tolist()
    return {"tokens": tokens, "tps": (len(tokens) - 1) / (last_s - first_s)}


def logits(model, question):
    rows = model(torch.tensor([question["tokens"]])).logits[0]
    np.save(question["path"], rows.float().numpy())
    return {}


def opened(path, dtype):
    """The module with the weights of a GGUF file; `from_pretrained` would ask for accelerate."""
    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing, unknown = model.load_state_dict(read["tensors"], strict=False)
    untied = [name for name in missing if name != "lm_head.weight"]
    assert not untied, untied
    assert not unknown, unknown
    model.tie_weights()
    return model.eval()


def main():
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print does not disturb the talk
    path, n_threads, dtype = Path(sys.argv[1]), int(sys.argv[2]), DTYPES[sys.argv[3]]
    torch.set_num_threads(n_threads)
    model = opened(path, dtype)
    with torch.inference_mode():
        for line in sys.stdin:
            question = json.loads(line)
            answer = {"generate": generate, "logits": logits}[question["do"]](model, question)
            print(json.dumps(answer), file=talk, flush=True)


if __name__ == "__main__":
    main()
