"""Several replies of one worker: each under its number, and none in the way of another."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, PredictorName, SamplingSettings, SpeculationSettings
from engine.events import Event, Failed, Finished, FinishReason, OfReply, TokensCommitted
from engine.process.blocking_client import BlockingClient
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest

pytestmark = pytest.mark.model

PROMPTS = ("Once upon a time", "The capital of France is", "def add(a, b):", "One, two, three,")
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)


def asked(text: str, n_tokens: int = 16) -> GenerationRequest:
    return GenerationRequest(
        raw_prompt=text, sampling=SamplingSettings(), max_tokens=n_tokens, seed=3
    )


@pytest.fixture(scope="module")
def engine(
    starter_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BlockingClient]:
    client = WorkerClient(log_path=tmp_path_factory.mktemp("log") / "worker.log")
    engine = BlockingClient(client, limit_s=120)
    exact = Configuration(
        starter_path,
        n_ctx=1536,
        n_slots=3,
        n_batch=64,
        n_ubatch=1,
        n_threads=1,
        speculation=PLAIN,
    )
    engine.load(exact)
    yield engine
    client.close()


def events_by_id(events: Iterator[OfReply]) -> dict[int, list[Event]]:
    reported: dict[int, list[Event]] = {}
    for event in events:
        reported.setdefault(event.reply_id, []).append(event.event)
    return reported


def test_parallel_replies_have_the_texts_that_each_has_alone(engine: BlockingClient) -> None:
    requests = [(number, asked(text)) for number, text in enumerate(PROMPTS, start=1)]
    reported = events_by_id(engine.replies(requests, n_at_once=4))
    for number, request in requests:
        *_, alone = engine.reply(request)
        together = reported[number][-1]
        assert isinstance(alone, Finished)
        assert isinstance(together, Finished)
        assert together.token_ids == alone.token_ids
        assert together.text == alone.text


def test_one_of_them_is_stopped_by_its_number(engine: BlockingClient) -> None:
    client = engine.client
    client.generate(asked(PROMPTS[0], 400), 7)
    client.generate(asked(PROMPTS[1], 24), 8)
    reported: dict[int, list[Event]] = {7: [], 8: []}
    while not all(events and isinstance(events[-1], Finished) for events in reported.values()):
        for event in client.poll(1.0):
            if not isinstance(event, OfReply):
                continue
            reported[event.reply_id].append(event.event)
            if event.reply_id == 8 and isinstance(event.event, TokensCommitted):
                client.stop(7)
    stopped, whole = (reported[number][-1] for number in (7, 8))
    assert isinstance(stopped, Finished)
    assert isinstance(whole, Finished)
    assert stopped.reason is FinishReason.CANCELLED
    assert len(whole.token_ids) == 24


def test_a_request_that_is_refused_ends_its_own_reply_only(engine: BlockingClient) -> None:
    long = replace(asked("word " * 4000), max_tokens=4)
    reported = events_by_id(engine.replies([(1, long), (2, asked(PROMPTS[2]))], n_at_once=2))
    assert [type(event) for event in reported[1]] == [Failed]
    assert isinstance(reported[2][-1], Finished)


def test_the_chat_s_own_reply_is_made_beside_them(engine: BlockingClient) -> None:
    engine.client.generate(asked(PROMPTS[0], 60), 5)
    *_, own = engine.reply(asked(PROMPTS[3]))
    assert isinstance(own, Finished)
    assert len(own.token_ids) == 16
