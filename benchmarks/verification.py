"""How often drafts change the text on fast kernels, and what each verification accepts.

    python benchmarks/verification.py MODEL [--prompts 8] [--tokens 64] [--length 3]

First part: replies with look-up, with and without `strict`, against plain decoding, greedy and
drawn. Where one parts, the margin is the lead of plain decoding's token over the next best at that
place, in logits. Second part: the model drafts for itself, once as it is and once with a KV cache
of 4 bits, which makes it an imperfect draft; the share of examined tokens that each verification
accepts.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from lookup import read_prompts

from engine.backends.llama_cpp.backend import ContextSettings, LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.placement import whole_model
from engine.cancellation import Cancellation
from engine.configuration import (
    ControllerName,
    KVTypeName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
    Verification,
)
from engine.events import Finished
from engine.model.chat_template import ChatTemplate
from engine.prompt import chat_prompt
from engine.requests import GenerationRequest, Message
from engine.sampling.sampler import Sampler
from engine.session import Session

N_CTX = 2048
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)


@dataclass(frozen=True, slots=True)
class Asked:
    """The model, opened once as target, and what is asked of it."""

    target: LlamaCppBackend
    template: ChatTemplate
    requests: list[GenerationRequest]
    n_draft: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.7)
    options = parser.parse_args()
    log = NativeLog()
    target = open_backend(options.model, log, "f16")
    warm = SamplingSettings(temperature=options.temperature, top_k=40, top_p=0.95, min_p=0.05)
    asked = Asked(
        target,
        ChatTemplate(target.chat_template),
        requests(options.prompts, options.tokens, warm),
        options.length,
    )
    parting(asked, warm)
    for kv_type in ("f16", "q4_0"):
        draft = open_backend(options.model, log, kv_type)
        accepting(asked, draft, kv_type)
        draft.close()
    target.close()


def open_backend(model: Path, log: NativeLog, kv_type: KVTypeName) -> LlamaCppBackend:
    settings = ContextSettings(
        placement=whole_model(model.resolve(), 0),
        n_ctx=N_CTX,
        n_batch=N_CTX,
        n_ubatch=512,
        type_k=kv_type,
        type_v=kv_type,
        flash_attention="on",
        n_threads=2,
    )
    return LlamaCppBackend(settings, log)


def requests(n_prompts: int, n_tokens: int, sampling: SamplingSettings) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            messages=(Message("user", f"{prompt['instruction']}\n\n{prompt['text']}"),),
            sampling=sampling,
            max_tokens=n_tokens,
            seed=seed,
        )
        for seed, prompt in enumerate(read_prompts()[:n_prompts])
    ]


def parting(asked: Asked, warm: SamplingSettings) -> None:
    loose = SpeculationSettings(
        controller=ControllerName.FIXED, n_draft=asked.n_draft, lookup_pattern_min=1
    )
    session = Session(asked.target, asked.template, PLAIN)
    for sampling in (SamplingSettings(), warm):
        wanted = [replace(request, sampling=sampling) for request in asked.requests]
        plain = [reply(session, PLAIN, request) for request in wanted]
        for name, settings in (("loose", loose), ("strict", replace(loose, strict=True))):
            drafted = [reply(session, settings, request) for request in wanted]
            margins = [
                margin_where_they_part(asked, *both)
                for both in zip(wanted, plain, drafted, strict=True)
            ]
            told = " ".join(f"{margin:.4f}" for margin in margins if margin is not None)
            n_parted = sum(margin is not None for margin in margins)
            seconds = sum(finished.stats.decode_s for finished in drafted)
            print(
                f"temperature {sampling.temperature}: {name:6} {n_parted} of {len(wanted)} part, "
                f"margins {told or '-'}; decoding {seconds:.1f} s",
                flush=True,
            )


def reply(session: Session, settings: SpeculationSettings, request: GenerationRequest) -> Finished:
    session.set_speculation(settings)
    last = list(session.generate(request, Cancellation()))[-1]
    assert isinstance(last, Finished)
    return last


def margin_where_they_part(
    asked: Asked, request: GenerationRequest, plain: Finished, drafted: Finished
) -> float | None:
    """Decode along the plain reply to the first other token; None where there is none."""
    both = zip(plain.token_ids, drafted.token_ids, strict=False)
    place = next((at for at, (one, other) in enumerate(both) if one != other), None)
    if place is None:
        return None
    prompt = chat_prompt(request.messages, asked.template, asked.target.vocabulary).tokens
    sequence = asked.target.open()
    sequence.crop(0)
    sequence.prefill(prompt[:-1])
    line = list(prompt)
    for token in plain.token_ids[:place]:
        sequence.decode(line[-1])
        line.append(token)
    row = sequence.decode(line[-1]).logits[0]
    margin = Sampler(request.sampling, plain.seed).margin(row, line, len(line))
    sequence.crop(0)
    return margin


def accepting(asked: Asked, draft: LlamaCppBackend, kv_type: KVTypeName) -> None:
    session = Session(asked.target, asked.template, PLAIN, draft_backend=draft)
    settings = SpeculationSettings(
        predictor=PredictorName.DRAFT,
        controller=ControllerName.FIXED,
        n_draft=asked.n_draft,
        draft_min_confidence=0.0,
    )
    modes: tuple[Verification, ...] = get_args(Verification)
    for mode in modes:
        replies = [
            reply(session, replace(settings, verification=mode), request)
            for request in asked.requests
        ]
        stats = [finished.stats for finished in replies]
        n_accepted = sum(one.n_accepted for one in stats)
        n_examined = sum(one.n_examined for one in stats)
        n_rounds = sum(one.n_rounds for one in stats)
        print(
            f"draft with {kv_type} cache, {mode:9} {n_accepted / n_examined:6.1%} accepted, "
            f"{sum(one.n_emitted for one in stats) / n_rounds:.2f} tokens a round",
            flush=True,
        )


if __name__ == "__main__":
    main()
