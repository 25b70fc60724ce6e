"""One prompt, two ways of drafting, by turns."""

import pytest

from app.chat.update import SIDES
from app.compare.comparison import Comparison
from app.compare.side import Side
from app.compare.verdict import speed_of
from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.events import Failed, WorkerStopped
from engine.requests import GenerationRequest, Message
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient

PLAIN = Side(SpeculationSettings(predictor=PredictorName.OFF))
LOOKUP = Side(SpeculationSettings(predictor=PredictorName.LOOKUP, controller=ControllerName.AUTO))
LEFT, RIGHT = SIDES
ONES_OWN = SpeculationSettings(n_draft=7)
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
    return Comparison(client, REQUEST, (PLAIN, LOOKUP), restore=ONES_OWN), client


def run(comparison: Comparison, client: ScriptedClient) -> None:
    for _ in range(100):
        for event in client.poll():
            comparison.take(event)
        if not comparison.is_running:
            return
    raise AssertionError("it does not end")


def test_both_sides_answer_the_same_request_and_the_chats_settings_come_back() -> None:
    comparison, client = make()
    comparison.add_pairs()
    run(comparison, client)
    assert client.requests == [REQUEST, REQUEST]
    assert client.asked == [PLAIN.settings, LOOKUP.settings]
    assert client.speculation == ONES_OWN
    assert comparison.problem is None
    assert [answer.text for answer in comparison.shown if answer] == ["Hello there."] * 2


def test_the_side_that_begins_changes_from_pair_to_pair() -> None:
    comparison, client = make()
    comparison.add_pairs(3)
    run(comparison, client)
    names = [settings.predictor for settings in client.asked]
    assert names == ["off", "lookup", "lookup", "off", "off", "lookup"]
    assert len(comparison.pairs) == 3
    assert all(pair.first.side is PLAIN and pair.second.side is LOOKUP for pair in comparison.pairs)


def test_a_stopped_reply_counts_for_nothing_and_whole_pairs_stay() -> None:
    comparison, client = make(Script(tps=200.0))
    comparison.add_pairs()
    comparison.stop()
    assert client.n_stops == 1
    run(comparison, client)
    assert comparison.pairs == []
    assert comparison.problem == "stopped"
    assert client.speculation == ONES_OWN
    assert speed_of(comparison.pairs) is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(fails_after=1), "llama_decode returned"),
        (Script(refuses=("The context is full", "drop some")), "drop some"),
    ],
)
def test_a_failure_ends_the_comparison_and_says_why(script: Script, words: str) -> None:
    comparison, client = make(script)
    comparison.add_pairs()
    run(comparison, client)
    assert words in str(comparison.problem)
    assert client.speculation == ONES_OWN


def test_the_chat_hears_too_that_the_engine_is_gone() -> None:
    comparison, _ = make(Script(tps=1.0))
    comparison.add_pairs()
    assert not comparison.take(WorkerStopped("The engine stopped", "It was killed.", -9))
    assert not comparison.is_running
    assert not comparison.take(Failed("late", "late"))
