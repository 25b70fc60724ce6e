"""Arms on prompts: the order of the replies, failures, crashes and continuing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.configuration import (
    Configuration,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import WorkerError
from engine.events import Event, Failed, FinishReason, Loaded, WorkerStopped
from engine.experiment.arm import Arm, ExperimentError, parse_arm
from engine.experiment.prompts import BenchPrompt
from engine.experiment.records import PromptRecord, Results
from engine.experiment.runner import (
    OTHER_PROMPT,
    Runner,
    Unit,
    ends_in_loop,
    row_order,
)
from engine.requests import GenerationRequest
from tests.engine.experiment.answering_client import (
    CONFIGURATION,
    AnsweringClient,
    finished,
    loaded,
    steady,
)
from tests.engine.experiment.made_results import results

LOOKUP, AUTO, DRAFT = map(parse_arm, ("lookup:fixed:2", "combined:auto", "draft:fixed:4"))
SAMPLING = SamplingSettings(top_k=5)
UNIT = Unit(BenchPrompt("chat", "one", "Hello?"), 0.7)
UNITS = [Unit(BenchPrompt("chat", name, name), 0.0) for name in ("one", "two", "three", "four")]
EMPTY = results(arms=[LOOKUP.name])
DIED = WorkerStopped("The engine stopped", "killed by signal 9", -9)


class Shown:
    """Collects the progress."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.prompts: list[str] = []

    def show(self, _: str, share: float) -> None:
        self.shares.append(share)

    def report(self, record: PromptRecord) -> None:
        self.prompts.append(record.prompt)


def runner(
    client: AnsweringClient, *arms: Arm, shown: Shown | None = None, n_blocks: int = 1
) -> Runner:
    configuration, shown = replace(CONFIGURATION, sampling=SAMPLING), shown or Shown()
    return Runner(
        loaded(client), configuration, arms or (LOOKUP,), shown.show, shown.report, n_blocks, 40, 7
    )


def measured(client: AnsweringClient, *arms: Arm, n_blocks: int = 1) -> PromptRecord:
    return runner(client, *arms, n_blocks=n_blocks).measure(UNIT)


class Facts(AnsweringClient):
    """Has a model with other facts."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.facts = facts

    def loaded(self, configuration: Configuration) -> Loaded:
        return replace(super().loaded(configuration), **self.facts)


class Failing(AnsweringClient):
    """Answers certain prompts with certain events."""

    def __init__(self, **instead: Event) -> None:
        super().__init__(self._answer)
        self.instead = instead

    def _answer(self, request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        event = self.instead.get(request.messages[0].content)
        return steady(request, settings) if event is None else [event]


def run(client: AnsweringClient, done: Results = EMPTY) -> tuple[Results, list[Results], Shown]:
    saved: list[Results] = []
    shown = Shown()
    final = runner(client, shown=shown).run(UNITS, done, saved.append)
    return final, saved, shown


def test_each_arm_runs_twice_between_two_plain_replies_and_each_arm_comes_first() -> None:
    arms = [parse_arm(f"lookup:fixed:{n}") for n in (1, 2, 3)]
    orders = [row_order(arms, shift) for shift in range(3)]
    assert {order[1].name for order in orders} == {arm.name for arm in arms}
    for order in orders:
        for arm in arms:
            first = order.index(arm)
            assert [each.is_plain for each in order[first - 1 : first + 3]] == [
                True, False, False, True,
            ]  # fmt: skip
            assert order[first + 1] is arm


def test_blocks_draw_with_seeds_of_their_own_and_the_prompt_is_read_before() -> None:
    client = AnsweringClient()
    record = measured(client, n_blocks=2)
    warm_up, *asked = client.asked
    assert (warm_up[0].max_tokens, warm_up[1].predictor) == (2, PredictorName.OFF)
    assert [request.seed for request, _ in asked] == [7] * 4 + [8] * 4
    assert {request.sampling for request, _ in asked} == {replace(SAMPLING, temperature=0.7)}
    names = ["plain", LOOKUP.name, LOOKUP.name, "plain"]
    assert [[sample.arm for sample in row] for row in record.rows] == [names, names]
    speeds = [40 / sample.stats.decode_s for sample in record.rows[0]]
    assert speeds == pytest.approx([100, 150, 150, 100])


def test_the_first_token_that_differs_from_plain_decoding_is_recorded() -> None:
    def diverging(request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        tokens = list(range(40))
        if settings.predictor is not PredictorName.OFF:
            tokens[5:] = [25] * 35
        return [finished(tokens, 100.0, seed=request.seed)]

    [row] = measured(AnsweringClient(diverging)).rows
    assert [sample.diverges_at for sample in row] == [None, 5, 5, None]


def test_prompts_whose_reply_loops_or_ends_soon_are_excluded() -> None:
    looping = AnsweringClient(lambda request, _: [finished([3] * 40, 9.0, seed=request.seed)])
    assert measured(looping).excluded == "loop"
    assert measured(AnsweringClient()).excluded is None
    short = replace(finished(range(9), 9.0, seed=1), reason=FinishReason.END)
    assert measured(AnsweringClient(lambda *_: [short])).excluded == "short"


@pytest.mark.parametrize(("arm", "reads_again"), [(DRAFT, True), (AUTO, True), (LOOKUP, False)])
def test_a_draft_model_reads_the_prompt_again_for_every_reply(arm: Arm, reads_again: bool) -> None:
    client = Facts(predictors=("off", "lookup", "combined", "draft"))
    measured(client, arm)
    others = [request for request, _ in client.asked if request.raw_prompt == OTHER_PROMPT]
    assert len(others) == 2 * reads_again


def test_a_model_without_a_template_gets_the_bare_text() -> None:
    client = Facts(has_chat_template=False)
    measured(client)
    assert {(request.raw_prompt, request.messages) for request, _ in client.asked} == {
        ("Hello?", ())
    }


def test_results_are_saved_after_every_prompt() -> None:
    final, saved, shown = run(AnsweringClient())
    assert [len(each.prompts) for each in saved] == [1, 2, 3, 4]
    assert final == saved[-1]
    assert shown.prompts == ["one", "two", "three", "four"]
    assert shown.shares == [n / 16 for n in range(1, 17)]


@pytest.mark.parametrize(
    ("event", "n_loads"),
    [(Failed("The context is full", "raise --ctx"), 1), (DIED, 2)],
    ids=["refused", "died"],
)
def test_a_prompt_that_fails_or_ends_the_engine_does_not_end_the_benchmark(
    event: Failed | WorkerStopped, n_loads: int
) -> None:
    client = Failing(two=event)
    final, _, _ = run(client)
    failure = f"{event.title}: {event.message}"
    assert [each.failure for each in final.prompts] == [None, failure, None, None]
    assert client.n_loads == n_loads


def test_an_engine_that_keeps_dying_ends_the_benchmark_and_loses_nothing() -> None:
    saved: list[Results] = []
    client = Failing(two=DIED, three=DIED, four=DIED)
    with pytest.raises(WorkerError, match="crashed on 3 prompts in a row"):
        runner(client).run(UNITS, EMPTY, saved.append)
    assert [each.failure is None for each in saved[-1].prompts] == [True, False, False, False]


def test_a_hung_engine_that_the_watchdog_restarts_is_waited_for() -> None:
    class Restarting(Failing):
        """Comes back by itself, as the client does with a hung engine."""

        def _answer(
            self, request: GenerationRequest, settings: SpeculationSettings
        ) -> Sequence[Event]:
            events = super()._answer(request, settings)
            return [*events, self.loaded(CONFIGURATION)] if len(events) == 1 else events

    client = Restarting(two=replace(DIED, will_restart=True))
    final, _, _ = run(client)
    assert [each.failure is None for each in final.prompts] == [True, False, True, True]
    assert client.n_loads == 1


def test_results_that_cannot_be_saved_end_the_benchmark() -> None:
    def full(results: Results) -> None:
        raise ExperimentError("the disk is full")

    with pytest.raises(ExperimentError, match="disk is full"):
        runner(AnsweringClient()).run(UNITS, EMPTY, full)


def test_a_benchmark_that_is_continued_measures_the_rest_and_failures_again() -> None:
    first, _, _ = run(Failing(two=Failed("No", "not now")))
    done = replace(first, prompts=first.prompts[:3])
    final, _, shown = run(AnsweringClient(), done)
    assert shown.prompts == ["two", "four"]
    assert [each.prompt for each in final.prompts] == ["one", "three", "two", "four"]
    assert final.elapsed_s > done.elapsed_s


def test_a_reply_that_repeats_its_last_tokens_loops() -> None:
    assert ends_in_loop([1, 2, 3, *[7, 8] * 12])
    assert ends_in_loop([5] * 24)
    assert ends_in_loop([1, *range(10, 20), *range(10, 20), *range(10, 20)])


def test_a_short_repetition_or_one_in_the_middle_is_no_loop() -> None:
    assert not ends_in_loop([1, 2, 3, *[7, 8] * 11])
    assert not ends_in_loop([*[7, 8] * 40, 9])
    assert not ends_in_loop([*range(20), *range(20), 1])
    assert not ends_in_loop([])
