"""Waiting for an engine: loads, replies, and the ways in which both end."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.configuration import Configuration
from engine.errors import WorkerError
from engine.events import Event, Failed, Loaded, WorkerStopped
from engine.process.blocking_client import (
    BlockingClient,
    EngineStoppedError,
    EngineTimeoutError,
    RequestFailedError,
)
from engine.requests import GenerationRequest, Message
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient, loaded

REQUEST = GenerationRequest(messages=(Message("user", "Hello"),))
DIED = WorkerStopped("The engine stopped", "killed by signal 9", -9)
HUNG = replace(DIED, will_restart=True)


class Loading(ScriptedClient):
    """Answers each load with given events."""

    def __init__(self, *answers: Sequence[Event]) -> None:
        super().__init__()
        self.answers = [*answers]

    def load(self, configuration: Configuration) -> None:
        self.loads.append(configuration)
        for event in self.answers.pop(0):
            self.emit(event)


LOADED = loaded(CONFIGURATION)


def test_a_load_returns_the_engines_event() -> None:
    engine = BlockingClient(ScriptedClient())
    assert engine.load(CONFIGURATION) == LOADED
    assert engine.last_loaded == LOADED


def test_a_crash_while_loading_is_reported_and_its_retry_awaited() -> None:
    crashes: list[WorkerStopped] = []
    engine = BlockingClient(Loading([HUNG, LOADED]), on_restart=crashes.append)
    assert engine.load(CONFIGURATION) == LOADED
    assert crashes == [HUNG]


def test_nothing_is_waited_for_after_the_end_of_a_reply() -> None:
    engine = BlockingClient(ScriptedClient())
    engine.load(CONFIGURATION)
    *_, end = engine.reply(REQUEST)
    assert engine.finished is end
    assert [*engine.rest_of_reply()] == []


@pytest.mark.parametrize(
    ("event", "error"),
    [(Failed("No model", "it is broken"), RequestFailedError), (DIED, EngineStoppedError)],
)
def test_a_load_that_fails_raises_the_reason(
    event: Failed | WorkerStopped, error: type[WorkerError]
) -> None:
    with pytest.raises(error, match=event.message) as raised:
        BlockingClient(Loading([event])).load(CONFIGURATION)
    assert raised.value.title == event.title


def test_an_engine_that_is_silent_beyond_the_limit_is_given_up() -> None:
    with pytest.raises(EngineTimeoutError, match=r"within 0\.01 s"):
        BlockingClient(Loading([]), limit_s=0.01).load(CONFIGURATION)


def test_a_reply_whose_reader_was_interrupted_goes_on_without_a_gap() -> None:
    whole = [*_ready(ScriptedClient()).reply(REQUEST)]
    engine = _ready(ScriptedClient())
    first = next(iter(engine.reply(REQUEST)))
    assert [first, *engine.rest_of_reply()] == whole


def test_a_refused_request_leaves_the_engine_for_the_next() -> None:
    client = ScriptedClient(Script(refuses=("Too long", "raise --ctx")))
    engine = _ready(client)
    with pytest.raises(RequestFailedError, match="raise --ctx") as caught:
        [*engine.reply(REQUEST)]
    assert caught.value.title == "Too long"
    client.script = Script()
    assert [*engine.reply(REQUEST)]
    assert len(client.loads) == 1


def test_an_engine_that_failed_for_good_has_its_model_again_for_the_next_reply() -> None:
    client = ScriptedClient()
    engine = _ready(client)
    client.emit(Failed("Decoding failed", "the context is lost", fatal=True))
    with pytest.raises(RequestFailedError, match="the context is lost"):
        [*engine.reply(REQUEST)]
    assert [*engine.reply(REQUEST)]
    assert len(client.loads) == 2


def test_an_engine_that_died_has_its_model_again_for_the_next_reply() -> None:
    client = ScriptedClient(Script(dies_after=1))
    engine = _ready(client)
    with pytest.raises(EngineStoppedError, match="signal 9"):
        [*engine.reply(REQUEST)]
    client.script = Script()
    assert [*engine.reply(REQUEST)]
    assert client.loads == [CONFIGURATION, CONFIGURATION]


def test_an_engine_that_hung_in_a_reply_ends_it_and_is_waited_for_before_the_next() -> None:
    client = ScriptedClient()
    engine = _ready(client)
    client.emit(HUNG)
    with pytest.raises(EngineStoppedError):
        [*engine.reply(REQUEST)]
    again = replace(LOADED, elapsed_s=9.0)
    client.close()
    client.emit(again)
    assert [*engine.reply(REQUEST)]
    assert engine.last_loaded is again
    assert len(client.loads) == 1


def _ready(client: ScriptedClient) -> BlockingClient:
    engine = BlockingClient(client)
    assert isinstance(engine.load(CONFIGURATION), Loaded)
    return engine
