"""Whether drafts leave the text as it is: every predictor under every rule, against plain decoding.

    python benchmarks/equality.py MODEL [--draft GGUF] [--sets grounded chat] [--prompts 2]
        [--seeds 2] [--tokens 64] [--temperature 0.7] [--kernels reference fast] [--json FILE]

`reference` decodes with ubatches of one token, where llama.cpp computes each row of a batch as
it computes it alone: every text must be that of plain decoding. `fast` decodes with ubatches
of 512, whose kernels round otherwise for several rows than for one: here the table shows how many
replies part, at which token, and how close the model's best two tokens were there. That margin is
measured by decoding plain decoding's line once more, token by token; a line that does not come out
again is counted as `unsteady`. Greedy replies need no seed, so they run once a prompt.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from engine.backends.base import rewind
from engine.backends.llama_cpp.backend import LlamaCppBackend, Role
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import (
    Configuration,
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.events import Finished, GenerationStats
from engine.experiment.prompts import BenchPrompt, draw, read_set
from engine.generation.prompt import chat_prompt
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.sampling import Choice, Sampler
from engine.speculation.stats import first_divergence
from engine.speculation.verify import NEAR_TIE

N_CTX = 4096
N_UBATCH = {"reference": 1, "fast": 512}
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)
EAGER = SpeculationSettings(
    lookup_pattern_min=1, suffix_min_confidence=0.2, draft_min_confidence=0.2
)
"""Drafts as often as it can, so that much is verified."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a reply with drafts leaves plain decoding's, and by how little."""

    prompt: str
    seed: int
    at: int
    margin: float | None
    """Lead of plain decoding's token there, in logits; None where its line came out otherwise."""


@dataclass(slots=True)
class Case:
    """One predictor under one rule, at one temperature, on one kind of kernels."""

    kernels: str
    predictor: str
    rule: str
    drawing: str
    n_runs: int = 0
    n_tokens: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_near_ties: int = 0
    decode_s: float = 0.0
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def n_same(self) -> int:
        return self.n_runs - len(self.divergences)


class Machine:
    """The model on one kind of kernels.

    Replies to one prompt share its keys and values, so that two of them differ by nothing but the
    batches of the reply itself.
    """

    def __init__(self, options: argparse.Namespace, kernels: str, log: NativeLog) -> None:
        n_ubatch = N_UBATCH[kernels]
        self._target = open_backend(options.model, log, n_ubatch, options.threads)
        self._sequence = self._target.open()
        self._draft = None
        if options.draft is not None:
            self._draft = open_backend(options.draft, log, n_ubatch, options.threads, "draft")
        self._template = ChatTemplate(self._target.chat_template)
        self._session = Session(self._target, self._template, PLAIN, draft_backend=self._draft)

    @property
    def predictors(self) -> list[PredictorName]:
        """Every predictor that drafts with this model."""
        readers = [PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.COMBINED]
        return [*readers, PredictorName.DRAFT] if self._draft is not None else readers

    def reply(self, settings: SpeculationSettings, request: GenerationRequest) -> Finished:
        self._session.set_speculation(settings)
        last = list(self._session.generate(request, Cancellation()))[-1]
        assert isinstance(last, Finished)
        return last

    def margin(self, request: GenerationRequest, plain: Finished, at: int) -> float | None:
        """Decode plain decoding's line again and give the lead of its token at a place."""
        prompt = chat_prompt(request.messages, self._template, self._target.vocabulary).tokens
        sampler = Sampler(request.sampling, plain.seed)
        rewind(self._sequence, prompt[:-1])
        line = list(prompt)
        for token in plain.token_ids[:at]:
            if self._choice(sampler, line).token != token:
                return None
            line.append(token)
        return self._choice(sampler, line).margin

    def close(self) -> None:
        self._session.close()

    def _choice(self, sampler: Sampler, line: list[int]) -> Choice:
        logits = self._sequence.decode(line[-1]).logits[0]
        return sampler.choose(logits, line, len(line))


def main() -> None:
    options = parsed()
    prompts = [
        prompt
        for name in options.sets
        for prompt in draw(read_set(name), options.prompts, seed=options.seed)
    ]
    log = NativeLog()
    cases: list[Case] = []
    for kernels in options.kernels:
        machine = Machine(options, kernels, log)
        found = run_all(machine, kernels, prompts, options)
        machine.close()
        print_cases(found)
        cases += found
    if options.json is not None:
        text = {"model": options.model.name, "cases": [asdict(case) for case in cases]}
        options.json.write_text(json.dumps(text, indent=1), encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path, help="the model itself is a good draft")
    parser.add_argument("--sets", nargs="+", default=["grounded", "chat"])
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each set")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="chooses the prompts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 3, 8])
    parser.add_argument("--kernels", nargs="+", choices=list(N_UBATCH), default=list(N_UBATCH))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def open_backend(
    model: Path, log: NativeLog, n_ubatch: int, n_threads: int, role: Role = "target"
) -> LlamaCppBackend:
    settings = Configuration(
        model.resolve(),
        n_ctx=N_CTX,
        n_batch=512,
        n_ubatch=n_ubatch,
        n_gpu_layers=0,
        flash_attention="on",
        n_threads=n_threads,
    )
    return LlamaCppBackend(settings, log, role)


def run_all(
    machine: Machine, kernels: str, prompts: list[BenchPrompt], options: argparse.Namespace
) -> list[Case]:
    """Every case, prompt by prompt, each reply beside plain decoding's of the same prompt."""
    cases: dict[tuple[str, str, str], Case] = {}
    again = [("plain again", "-", PLAIN)]
    for number, prompt in enumerate(prompts, 1):
        print(f"{kernels}: prompt {number} of {len(prompts)}", file=sys.stderr, flush=True)
        for drawing, request in requests(prompt.text, options):
            plain = machine.reply(PLAIN, request)
            for predictor, rule, settings in (*ways(machine.predictors, options.lengths), *again):
                key = predictor, rule, drawing
                case = cases.setdefault(key, Case(kernels, *key))
                drafted = machine.reply(settings, request)
                add(case, drafted.stats, len(drafted.token_ids))
                at = first_divergence(plain.token_ids, drafted.token_ids)
                if at is not None:
                    margin = machine.margin(request, plain, at)
                    case.divergences.append(Divergence(prompt.name, request.seed or 0, at, margin))
    return list(cases.values())


def requests(text: str, options: argparse.Namespace) -> Iterator[tuple[str, GenerationRequest]]:
    warm = SamplingSettings(temperature=options.temperature, top_k=40, top_p=0.95, min_p=0.05)
    base = GenerationRequest(messages=(Message("user", text),), max_tokens=options.tokens, seed=0)
    yield "greedy", base
    for seed in range(options.seeds):
        yield f"{warm.temperature:g}", replace(base, sampling=warm, seed=seed)


def ways(
    predictors: list[PredictorName], lengths: list[int]
) -> Iterator[tuple[str, str, SpeculationSettings]]:
    """Each predictor under each rule, with the names of both."""
    for predictor in predictors:
        settings = replace(EAGER, predictor=predictor)
        for n_draft in lengths:
            fixed = replace(settings, controller=ControllerName.FIXED, n_draft=n_draft)
            yield predictor.value, f"fixed {n_draft}", fixed
        yield predictor.value, "auto", replace(settings, controller=ControllerName.AUTO)


def add(case: Case, stats: GenerationStats, n_tokens: int) -> None:
    case.n_runs += 1
    case.n_tokens += n_tokens
    case.n_drafted += stats.n_drafted
    case.n_accepted += stats.n_accepted
    case.n_near_ties += stats.n_near_ties
    case.decode_s += stats.decode_s


def print_cases(cases: list[Case]) -> None:
    print(
        f"\n{'kernels':9} {'predictor':11} {'rule':7} {'drawn':6} {'runs':>4} "
        f"{'same':>4} {'tokens':>6} {'draft':>6} {'right':>6} {'ties':>4} {'s':>6}"
        "  parts at token (margin)"
    )
    for case in cases:
        print(
            f"{case.kernels:9} {case.predictor:11} {case.rule:7} {case.drawing:6} "
            f"{case.n_runs:4d} {case.n_same:4d} "
            f"{case.n_tokens:6d} {case.n_drafted:6d} {case.n_accepted:6d} {case.n_near_ties:4d} "
            f"{case.decode_s:6.1f}  {placed(case.divergences)}",
            flush=True,
        )
    drafting = [case for case in cases if case.n_drafted]
    for drawing in dict.fromkeys(case.drawing for case in drafting):
        print(summary([case for case in drafting if case.drawing == drawing]))


def placed(divergences: list[Divergence]) -> str:
    return " ".join(f"{each.at} ({formatted(each.margin)})" for each in divergences)


def formatted(margin: float | None) -> str:
    return "unsteady" if margin is None else f"{margin:.3f}"


def summary(cases: list[Case]) -> str:
    one = cases[0]
    divergences = [divergence for case in cases for divergence in case.divergences]
    n_runs = sum(case.n_runs for case in cases)
    margins = sorted(
        divergence.margin for divergence in divergences if divergence.margin is not None
    )
    name = f"{one.kernels}, {one.drawing}"
    text = f"{name}: {n_runs - len(divergences)} of {n_runs} replies are plain decoding's"
    if margins:
        places = [divergence.at for divergence in divergences]
        text += (
            f"; {len(divergences) / n_runs:.1%} diverge, at token {statistics.median(places):.0f} "
            f"in the median, margins {margins[0]:.3f} to {margins[-1]:.3f}, median "
            f"{statistics.median(margins):.3f}, {sum(each < NEAR_TIE for each in margins)} of "
            f"{len(margins)} below {NEAR_TIE}"
        )
    return text


if __name__ == "__main__":
    main()
