"""One prompt, two arms, in turns."""

from dataclasses import replace

import pytest

from engine.configuration import SpeculationSettings
from engine.events import Event, Failed, Finished, OfReply, WorkerStopped
from engine.experiment.arm import PLAIN, parse_arm
from engine.experiment.comparison import Comparison, divergences
from engine.requests import GenerationRequest, Message
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient

LOOKUP = parse_arm("lookup:auto")
OWN = SpeculationSettings(n_draft=7)
REQUEST = GenerationRequest(messages=(Message("user", "Hello?"),), seed=5, max_tokens=64)


class RecordingClient(ScriptedClient):
    """Notes with which settings each reply was asked for."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(script)
        self.asked: list[SpeculationSettings] = []

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        self.asked.append(self.speculation)
        super().generate(request, reply_id)


def make(script: Script | None = None) -> tuple[Comparison, RecordingClient]:
    client = RecordingClient(script)
    client.load(CONFIGURATION)
    client.poll()
    return Comparison(client, REQUEST, (PLAIN, LOOKUP), speculation=OWN), client


def at_speed(event: Event, tps: float, n_verified: int) -> Event:
    """Give the event, or if it ends a reply the end of one at this speed with so many drafts."""
    match event:
        case OfReply(reply_id, Finished() as end):
            n_emitted = end.stats.n_emitted or 0
            stats = replace(
                end.stats,
                decode_s=n_emitted / tps,
                n_rounds=n_emitted // 4 + 1,
                n_verified=n_verified,
            )
            return OfReply(reply_id, replace(end, stats=stats))
    return event


def run(
    comparison: Comparison, client: ScriptedClient, ratio: float = 1.0, n_verified: int = 80
) -> None:
    """Take events until nothing runs; the second arm is so many times as fast."""
    for _ in range(1000):
        for event in client.poll():
            comparison.take(
                at_speed(event, 100.0 * (ratio if comparison.running_arm else 1.0), n_verified)
            )
        if not comparison.is_running:
            return
    raise AssertionError("it does not end")


def test_a_block_is_four_replies_to_one_request_and_the_chats_settings_come_back() -> None:
    comparison, client = make()
    comparison.add_blocks()
    run(comparison, client)
    assert client.requests == [REQUEST] * 4
    assert client.asked == [PLAIN.of(OWN), LOOKUP.of(OWN), LOOKUP.of(OWN), PLAIN.of(OWN)]
    assert client.speculation == OWN
    assert comparison.problem is None
    assert [answer.text for answer in comparison.shown if answer] == ["Hello there."] * 2
    [block] = comparison.blocks
    assert [answer.arm for answer in block] == [PLAIN, LOOKUP, LOOKUP, PLAIN]


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.5, (True, False)), (0.6, (False, True)), (1.0, (False, False))]
)
def test_it_ends_where_more_blocks_would_change_nothing(
    ratio: float, verdict: tuple[bool, bool]
) -> None:
    comparison, client = make()
    comparison.add_blocks(20)
    run(comparison, client, ratio)
    assert len(comparison.blocks) == 6
    gain = comparison.gain
    assert (gain.is_faster, gain.reversed.is_faster, comparison.is_settled) == (*verdict, True)
    assert comparison.gain.median == pytest.approx(ratio)
    comparison.add_blocks()
    run(comparison, client, ratio)
    assert len(comparison.blocks) == 7


def test_arms_that_draft_nothing_are_settled_soon() -> None:
    comparison, client = make()
    comparison.add_blocks(20)
    run(comparison, client, n_verified=0)
    assert len(comparison.blocks) == 3
    assert comparison.is_settled


def test_texts_that_differ_are_found_where_they_diverge() -> None:
    comparison, client = make(Script(("A red fox ran", "A red dog ran", "A red fox ran",
                                      "A red fox ran")))  # fmt: skip
    comparison.add_blocks()
    run(comparison, client)
    first, second = divergences(comparison)
    assert second is None
    assert (first.before, first.first, first.second) == ("A red", "fox ran", "dog ran")


def test_a_stopped_reply_counts_for_nothing_and_whole_blocks_stay() -> None:
    comparison, client = make()
    comparison.add_blocks()
    run(comparison, client)
    client.script = Script(tps=200.0)
    comparison.add_blocks()
    comparison.stop()
    assert client.n_stops == 1
    run(comparison, client)
    assert len(comparison.blocks) == 1
    assert (comparison.problem, comparison.was_stopped) == ("stopped", True)
    assert client.speculation == OWN


@pytest.mark.parametrize(
    ("script", "ratio", "words"),
    [
        (Script(fails_after=1), 1.0, "llama_decode returned"),
        (Script(refuses=("The context is full", "drop some")), 1.0, "drop some"),
        (Script(("",)), 1.0, "the reply is empty"),
        (Script(), 1e9, "not a possible speed"),
    ],
)
def test_a_failure_ends_the_comparison_with_its_reason(
    script: Script, ratio: float, words: str
) -> None:
    comparison, client = make(script)
    comparison.add_blocks()
    run(comparison, client, ratio)
    assert words in str(comparison.problem)
    assert comparison.gain is None
    assert client.speculation == OWN


def test_the_chat_receives_the_end_of_the_engine_too() -> None:
    comparison, _ = make(Script(tps=1.0))
    comparison.add_blocks()
    assert not comparison.take(WorkerStopped("The engine stopped", "It was killed.", -9))
    assert not comparison.is_running
    assert not comparison.take(Failed("late", "late"))
