"""One prompt, plain and under every policy: the order of its runs, and what happened in each."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from app.bench.policies import Policy
from app.bench.prompt_sets import BenchPrompt
from app.bench.results import PLAIN, BatchCost, BenchError, BenchRun, PromptRecord
from app.bench.summary import ends_in_loop
from engine.configuration import (
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.events import (
    Event,
    Finished,
    RoundFinished,
    SpeculationChanged,
)
from engine.process.blocking_client import BlockingClient, RequestFailedError
from engine.requests import GenerationRequest, Message
from engine.speculation.stats import first_divergence

N_EXCERPT = 80
N_PRIMING = 2
"""Tokens of the reply that brings a prompt into the cache before anything is timed."""
OTHER_PROMPT = "."


@dataclass(frozen=True, slots=True)
class RunPlan:
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


@dataclass(frozen=True, slots=True)
class MeasuredReply:
    """A finished reply with what its rounds took."""

    finished: Finished
    rounds: tuple[tuple[int, float], ...]
    """Rows of each round after the first one, and its seconds without the drafting."""
    last_reason: str
    """The reason that the rule of the draft length gave after the last round."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedReply:
    """One reply to make; `group` is shared by a plain run and the runs next to it."""

    group: int
    policy: Policy | None
    """None is plain decoding."""


def measure_prompt(
    engine: BlockingClient,
    prompt: BenchPrompt,
    plan: RunPlan,
    *,
    temperature: float,
    index: int,
    run_done: Callable[[str], None],
) -> PromptRecord:
    """All runs of a prompt; one that the engine refuses becomes a record that says so.

    Args:
        engine: The engine, which has a model.
        prompt: What is asked.
        plan: The runs.
        temperature: Of every run, 0 is greedy.
        index: Number of the prompt in its set, which rotates the order of the runs.
        run_done: Called after every run with the name of its policy.

    Raises:
        EngineStoppedError: the engine's process ended.
    """
    empty = PromptRecord(prompt.set_name, prompt.name, temperature)
    runs = _PromptRuns()
    try:
        warm_up = _request(prompt, plan, temperature, plan.seed, N_PRIMING)
        collected(engine.reply(warm_up, _off(plan)))
        for pair in range(plan.n_pairs):
            slots = slots_of_pair(plan.policies, prompt=index, pair=pair)
            request = _request(prompt, plan, temperature, plan.seed + pair, plan.n_tokens)
            _run_pair(engine, request, plan, slots, pair, runs, run_done)
    except (RequestFailedError, BenchError) as error:
        return replace(empty, failure=f"{error.title}: {error}")
    return runs.record(empty)


def slots_of_pair(
    policies: Sequence[Policy], *, prompt: int, pair: int
) -> tuple[PlannedReply, ...]:
    """The order of one pair of one prompt: a plain run between every two policies.

    Each policy runs next to a plain run, once before and once after it in two consecutive pairs
    (the second is the first one backwards), so that a drift of the machine favours nobody. Which
    policies share a plain run, and who comes first, changes with every prompt and every second
    pair.

    Args:
        policies: What is compared, in its order.
        prompt: Number of the prompt in its set, from 0.
        pair: Number of the pair, from 0.
    """
    n = len(policies)
    start = (prompt + pair // 2) % n
    turned = [*policies[start:], *policies[:start]]
    slots: list[PlannedReply] = []
    for group, first in enumerate(range(0, n, 2)):
        before, *after = turned[first : first + 2]
        slots += [
            PlannedReply(group, before),
            PlannedReply(group, None),
            *(PlannedReply(group, each) for each in after),
        ]
    return tuple(slots) if (prompt // 2 + pair) % 2 == 0 else tuple(reversed(slots))


def n_runs(n_policies: int, n_pairs: int) -> int:
    """How many replies one prompt takes."""
    return n_pairs * (n_policies + (n_policies + 1) // 2)


class _PromptRuns:
    """Runs and round times of one prompt."""

    def __init__(self) -> None:
        self.runs: list[BenchRun] = []
        self.first_plain: MeasuredReply | None = None
        self._seconds: dict[int, list[float]] = defaultdict(list)
        self._notes: dict[str, None] = {}

    def add(self, runs: Sequence[BenchRun], replies: Sequence[MeasuredReply]) -> None:
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
            n_prompt=plain.finished.stats.n_prompt or 0,
            is_loop=ends_in_loop(plain.finished.token_ids),
            text=plain.finished.text,
            runs=tuple(self.runs),
            batches=tuple(
                BatchCost(n, len(seconds), statistics.median(seconds))
                for n, seconds in sorted(self._seconds.items())
            ),
            notes=tuple(self._notes),
        )


def _run_pair(
    engine: BlockingClient,
    request: GenerationRequest,
    plan: RunPlan,
    slots: Sequence[PlannedReply],
    pair: int,
    done: _PromptRuns,
    run_done: Callable[[str], None],
) -> None:
    replies = []
    for slot in slots:
        if plan.has_draft and slot.policy is not None and slot.policy.uses_draft_model:
            _forget_prompt(engine, plan)
        settings = _off(plan) if slot.policy is None else slot.policy.settings(plan.speculation)
        replies.append(collected(engine.reply(request, settings)))
        run_done(PLAIN if slot.policy is None else slot.policy.name)
    plain = {
        slot.group: reply for slot, reply in zip(slots, replies, strict=True) if slot.policy is None
    }
    if done.first_plain is None:
        done.first_plain = plain[0]
    runs = [
        _run(slot, pair, reply, plain[0 if slot.policy is None else slot.group])
        for slot, reply in zip(slots, replies, strict=True)
    ]
    done.add(runs, replies)


def _run(slot: PlannedReply, pair: int, reply: MeasuredReply, plain: MeasuredReply) -> BenchRun:
    finished, stats = reply.finished, reply.finished.stats
    if stats.decode_tps is None or not is_speed(stats.decode_tps):
        raise BenchError("the reply is empty, so it has no speed: ask something else")
    where = first_divergence(plain.finished.token_ids, finished.token_ids)
    where_in_text = first_divergence(plain.finished.text, finished.text)
    return BenchRun(
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
        n_emitted=stats.n_emitted or 0,
        parts_at=where,
        parts_as="" if where_in_text is None else finished.text[where_in_text:][:N_EXCERPT],
        by_source={
            name: (counts.n_verified, counts.n_accepted) for name, counts in stats.by_source.items()
        },
        by_position=tuple((each.n_examined, each.n_accepted) for each in stats.by_position),
        last_reason=reply.last_reason,
    )


def is_speed(decode_tps: float | None) -> bool:
    """Whether a reply was long enough to have a speed."""
    return decode_tps is not None and math.isfinite(decode_tps) and decode_tps > 0


def collected(events: Iterator[Event]) -> MeasuredReply:
    """A reply of which only the end and the rounds are of interest."""
    rounds: list[tuple[int, float]] = []
    notes: list[str] = []
    is_first, reason = True, ""
    for event in events:
        match event:
            case RoundFinished(n_verified=n_verified, verify_s=verify_s, reason=reason):
                if not is_first:
                    rounds.append((n_verified + 1, verify_s))
                is_first = False
            case SpeculationChanged(note=str(note)):
                notes.append(note)
            case Finished():
                return MeasuredReply(event, tuple(rounds), reason, tuple(notes))
    raise AssertionError("a reply ends with `Finished`")


def _forget_prompt(engine: BlockingClient, plan: RunPlan) -> None:
    """Let the draft model decode something else, so that it reads the prompt again.

    In a chat every prompt is new to it, and reading it is a part of what drafting costs.
    """
    request = GenerationRequest(raw_prompt=OTHER_PROMPT, max_tokens=N_PRIMING)
    drafting = replace(
        plan.speculation,
        predictor=PredictorName.DRAFT,
        controller=ControllerName.FIXED,
        n_draft=1,
    )
    collected(engine.reply(request, drafting))


def _request(
    prompt: BenchPrompt, plan: RunPlan, temperature: float, seed: int, n_tokens: int
) -> GenerationRequest:
    return GenerationRequest(
        messages=(Message("user", prompt.text),) if plan.has_template else (),
        raw_prompt=None if plan.has_template else prompt.text,
        sampling=replace(plan.sampling, temperature=temperature),
        max_tokens=n_tokens,
        seed=seed,
    )


def _off(plan: RunPlan) -> SpeculationSettings:
    return replace(plan.speculation, predictor=PredictorName.OFF)
