"""Runs one prompt plain and under every policy, and writes down what happened."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.bench.asking import Asker, PromptError, Reply, is_speed
from app.bench.numbers import loops, parts_at
from app.bench.policies import PLAIN, Policy
from app.bench.prompt_sets import Prompt
from app.bench.records import BatchCost, PromptRecord, Run
from app.bench.schedule import Slot, slots_of_pair
from engine.configuration import (
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.requests import GenerationRequest, Message

N_EXCERPT = 80
N_PRIMING = 2
"""Tokens of the reply that brings a prompt into the cache before anything is timed."""
OTHER_PROMPT = "."


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run for every prompt."""

    policies: tuple[Policy, ...]
    n_pairs: int
    n_tokens: int
    seed: int
    """Of the first pair; each further pair draws with the next one."""
    speculation: SpeculationSettings
    """What the policies do not name."""
    sampling: SamplingSettings
    """How tokens are drawn, but for the temperature."""
    has_draft: bool
    has_template: bool


def measure_prompt(
    asker: Asker,
    prompt: Prompt,
    plan: Plan,
    *,
    temperature: float,
    index: int,
    tell: Callable[[str], None],
) -> PromptRecord:
    """Give all runs of a prompt; one that the engine refuses becomes a record that says so.

    Args:
        asker: The engine.
        prompt: What is asked.
        plan: The runs.
        temperature: Of every run, 0 is greedy.
        index: Number of the prompt in its set, which turns the order of the runs.
        tell: Called behind every run with the name of its policy.

    Raises:
        EngineStoppedError: the engine's process ended.
    """
    empty = PromptRecord(prompt.set_name, prompt.name, temperature)
    collected = _Collected()
    try:
        asker.ask(_request(prompt, plan, temperature, plan.seed, N_PRIMING), _off(plan))
        for pair in range(plan.n_pairs):
            slots = slots_of_pair(plan.policies, prompt=index, pair=pair)
            request = _request(prompt, plan, temperature, plan.seed + pair, plan.n_tokens)
            _run_pair(asker, request, plan, slots, pair, collected, tell)
    except PromptError as error:
        return replace(empty, failure=str(error))
    return collected.record(empty)


class _Collected:
    """Runs and round times of one prompt."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.first_plain: Reply | None = None
        self._seconds: dict[int, list[float]] = defaultdict(list)
        self._notes: dict[str, None] = {}

    def add(self, runs: Sequence[Run], replies: Sequence[Reply]) -> None:
        self.runs += runs
        for reply in replies:
            self._notes.update(dict.fromkeys(reply.notes))
            for n_rows, seconds in reply.rounds:
                self._seconds[n_rows].append(seconds)

    def record(self, empty: PromptRecord) -> PromptRecord:
        plain = self.first_plain
        assert plain is not None, "every pair has plain runs"
        return replace(
            empty,
            n_prompt=plain.finished.stats.n_prompt,
            is_loop=loops(plain.finished.token_ids),
            text=plain.finished.text,
            runs=tuple(self.runs),
            batches=tuple(
                BatchCost(n, len(seconds), statistics.median(seconds))
                for n, seconds in sorted(self._seconds.items())
            ),
            notes=tuple(self._notes),
        )


def _run_pair(
    asker: Asker,
    request: GenerationRequest,
    plan: Plan,
    slots: Sequence[Slot],
    pair: int,
    collected: _Collected,
    tell: Callable[[str], None],
) -> None:
    replies = []
    for slot in slots:
        if plan.has_draft and slot.policy is not None and _asks_draft(slot.policy):
            _forget_prompt(asker, plan)
        settings = _off(plan) if slot.policy is None else slot.policy.settings(plan.speculation)
        replies.append(asker.ask(request, settings))
        tell(PLAIN if slot.policy is None else slot.policy.name)
    plain = {
        slot.group: reply for slot, reply in zip(slots, replies, strict=True) if slot.policy is None
    }
    if collected.first_plain is None:
        collected.first_plain = plain[0]
    runs = [
        _run(slot, pair, reply, plain[0 if slot.policy is None else slot.group])
        for slot, reply in zip(slots, replies, strict=True)
    ]
    collected.add(runs, replies)


def _run(slot: Slot, pair: int, reply: Reply, plain: Reply) -> Run:
    finished, stats = reply.finished, reply.finished.stats
    if stats.decode_tps is None or not is_speed(stats.decode_tps):
        raise PromptError("the reply is empty, so it has no speed: ask something else")
    where = parts_at(plain.finished.token_ids, finished.token_ids)
    where_in_text = parts_at(plain.finished.text, finished.text)
    return Run(
        policy=PLAIN if slot.policy is None else slot.policy.name,
        pair=pair,
        group=slot.group,
        seed=finished.seed,
        decode_tps=stats.decode_tps,
        n_tokens=len(finished.token_ids),
        finish_reason=finished.reason.value,
        n_rounds=stats.n_rounds,
        n_verified=stats.n_verified,
        n_accepted=stats.n_accepted,
        n_emitted=stats.n_emitted,
        parts_at=where,
        parts_as="" if where_in_text is None else finished.text[where_in_text:][:N_EXCERPT],
        by_source={
            name: (counts.n_verified, counts.n_accepted) for name, counts in stats.by_source.items()
        },
        by_position=tuple((place.n_examined, place.n_accepted) for place in stats.by_position),
        last_reason=reply.last_reason,
    )


def _forget_prompt(asker: Asker, plan: Plan) -> None:
    """Have the draft model decode something else, so that it reads the prompt anew.

    In a chat every prompt is new to it, and reading it is a part of what drafting costs.
    """
    request = GenerationRequest(raw_prompt=OTHER_PROMPT, max_tokens=N_PRIMING)
    drafting = replace(
        plan.speculation,
        predictor=PredictorName.DRAFT,
        controller=ControllerName.FIXED,
        n_draft=1,
    )
    asker.ask(request, drafting)


def _asks_draft(policy: Policy) -> bool:
    return policy.predictor in (PredictorName.DRAFT, PredictorName.COMBINED)


def _request(
    prompt: Prompt, plan: Plan, temperature: float, seed: int, n_tokens: int
) -> GenerationRequest:
    return GenerationRequest(
        messages=(Message("user", prompt.text),) if plan.has_template else (),
        raw_prompt=None if plan.has_template else prompt.text,
        sampling=replace(plan.sampling, temperature=temperature),
        max_tokens=n_tokens,
        seed=seed,
    )


def _off(plan: Plan) -> SpeculationSettings:
    return replace(plan.speculation, predictor=PredictorName.OFF)
