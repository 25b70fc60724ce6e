"""One prompt under every policy, and the order of its runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.bench.measure import (
    OTHER_PROMPT,
    PlannedReply,
    RunPlan,
    measure_prompt,
    slots_of_pair,
)
from app.bench.policies import Policy, parse_policy
from app.bench.prompt_sets import BenchPrompt
from app.bench.results import PromptRecord
from app.bench.summary import pair_ratios
from engine.configuration import (
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.events import Event, Failed
from engine.requests import GenerationRequest
from tests.app.bench.answering_client import AnsweringClient, finished, loaded, round_finished

PROMPT = BenchPrompt("chat", "one", "Hello?")
LOOKUP, AUTO, DRAFT = map(parse_policy, ("lookup:fixed:2", "combined:auto", "draft:fixed:4"))


def plan(*policies: Policy, **changes: object) -> RunPlan:
    made = RunPlan(
        policies=policies, n_pairs=2, n_tokens=40, seed=7, speculation=SpeculationSettings(),
        sampling=SamplingSettings(top_k=5), has_draft=False, has_template=True,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def measured(client: AnsweringClient, made: RunPlan, temperature: float = 0.0) -> PromptRecord:
    return measure_prompt(
        loaded(client),
        PROMPT,
        made,
        temperature=temperature,
        index=0,
        run_done=lambda policy: None,
    )


def test_every_policy_runs_in_every_pair_beside_a_plain_run() -> None:
    record = measured(AnsweringClient(), plan(LOOKUP, AUTO))
    assert [run.policy for run in record.runs] == [
        "lookup:fixed:2", "plain", "combined:auto", "combined:auto", "plain", "lookup:fixed:2",
    ]  # fmt: skip
    assert pair_ratios(record, AUTO.name) == [1.5, 1.5]


def test_plain_and_speculative_runs_of_a_pair_draw_with_one_seed_and_pairs_with_others() -> None:
    client = AnsweringClient()
    record = measured(client, plan(LOOKUP), temperature=0.7)
    assert [(run.pair, run.seed) for run in record.runs] == [(0, 7), (0, 7), (1, 8), (1, 8)]
    assert {request.sampling for request, _ in client.asked} == {
        SamplingSettings(temperature=0.7, top_k=5)
    }


def test_the_prompt_is_in_the_cache_before_anything_is_timed() -> None:
    client = AnsweringClient()
    measured(client, plan(LOOKUP))
    request, settings = client.asked[0]
    assert settings.predictor is PredictorName.OFF
    assert request.messages[0].content == "Hello?"
    assert request.max_tokens == 2


def test_where_texts_part_is_written_down_with_what_came_instead() -> None:
    def divergence(request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        tokens = list(range(40))
        if settings.predictor is not PredictorName.OFF:
            tokens[5:] = [25] * 35
        return [finished(tokens, 100.0, seed=request.seed)]

    record = measured(AnsweringClient(divergence), plan(LOOKUP))
    by_policy = {run.policy: run for run in record.runs}
    assert (by_policy["plain"].parts_at, by_policy["plain"].parts_as) == (None, "")
    assert by_policy[LOOKUP.name].parts_at == 5
    assert by_policy[LOOKUP.name].parts_as == "z" * 35


def test_rounds_are_counted_by_their_size_without_the_first_one() -> None:
    record = measured(AnsweringClient(), plan(LOOKUP))
    costs = [(cost.n_rows, cost.n_rounds, cost.median_s) for cost in record.batches]
    assert costs == [(1, 4, 0.01), (3, 4, 0.015)]


def test_what_the_rule_said_at_last_is_kept() -> None:
    def explaining(request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        said = [replace(round_finished(0, 0.01), reason=reason) for reason in ("up", "off: wrong")]
        return [*said, finished(range(40), 100.0, seed=request.seed)]

    record = measured(AnsweringClient(explaining), plan(LOOKUP))
    assert {run.last_reason for run in record.runs} == {"off: wrong"}


def test_a_prompt_that_the_engine_refuses_is_a_record_of_why() -> None:
    client = AnsweringClient(lambda *_: [Failed("The context is full", "raise --ctx")])
    record = measured(client, plan(LOOKUP))
    assert record.failure == "The context is full: raise --ctx"
    assert record.runs == ()


def test_a_reply_that_repeats_itself_is_marked() -> None:
    client = AnsweringClient(lambda request, _: [finished([3] * 40, 9.0, seed=request.seed)])
    assert measured(client, plan(LOOKUP)).is_loop
    assert not measured(AnsweringClient(), plan(LOOKUP)).is_loop


@pytest.mark.parametrize(("policy", "reads_anew"), [(DRAFT, True), (AUTO, True), (LOOKUP, False)])
def test_a_draft_model_reads_the_prompt_anew_in_every_run(policy: Policy, reads_anew: bool) -> None:
    client = AnsweringClient()
    measured(client, plan(policy, has_draft=True))
    for (other, forgetting), (request, settings) in zip(
        client.asked, client.asked[1:], strict=False
    ):
        if settings.predictor is policy.predictor and request.raw_prompt is None:
            assert (other.raw_prompt == OTHER_PROMPT) is reads_anew
            assert (forgetting.predictor is PredictorName.DRAFT) is reads_anew


def test_a_model_without_a_template_gets_the_bare_text() -> None:
    client = AnsweringClient()
    measured(client, plan(LOOKUP, has_template=False))
    assert {(request.raw_prompt, request.messages) for request, _ in client.asked} == {
        ("Hello?", ())
    }


def policies(n: int) -> list[Policy]:
    return [Policy(PredictorName.LOOKUP, ControllerName.FIXED, 1 + i) for i in range(n)]


def order(slots: Sequence[PlannedReply]) -> list[int]:
    return [slot.policy.n_draft or 0 if slot.policy else 0 for slot in slots]


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("prompt", range(5))
def test_each_policy_runs_once_a_pair_right_beside_the_plain_run_of_its_group(
    n: int, prompt: int
) -> None:
    for pair in range(4):
        slots = slots_of_pair(policies(n), prompt=prompt, pair=pair)
        assert Counter(slot.policy for slot in slots if slot.policy) == Counter(policies(n))
        for index, slot in enumerate(slots):
            if slot.policy is not None:
                beside = [*slots[max(0, index - 1) : index], *slots[index + 1 : index + 2]]
                assert PlannedReply(slot.group, None) in beside


@pytest.mark.parametrize("n", range(1, 9))
def test_two_pairs_put_each_policy_once_before_and_once_behind_its_plain_run(n: int) -> None:
    for prompt in range(6):
        for policy in policies(n):
            assert sum(is_before(policy, n, prompt, pair) for pair in (0, 1)) == 1


@pytest.mark.parametrize("n", [2, 4, 6, 8, 12])
def test_with_one_pair_the_prompts_balance_the_order(n: int) -> None:
    for policy in policies(n):
        assert sum(is_before(policy, n, prompt, pair=0) for prompt in range(4)) == 2


def is_before(policy: Policy, n: int, prompt: int, pair: int) -> bool:
    slots = slots_of_pair(policies(n), prompt=prompt, pair=pair)
    index = next(i for i, slot in enumerate(slots) if slot.policy == policy)
    plain = slots.index(PlannedReply(slots[index].group, None))
    return index < plain
