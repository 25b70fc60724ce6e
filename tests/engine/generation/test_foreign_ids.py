"""A chat file may hold any numbers as token ids: none that is no token reaches the vocabulary."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.errors import TokenError
from engine.events import Failed, Finished, Loaded, PromptReady, WorkerStopped
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.process.client import WorkerClient
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import TEMPLATE, FakeBackend, FakeVocabulary
from tests.support.waiting import wait_until

LETTERS = FakeVocabulary(26, ord("a"))
THINKING = TEMPLATE.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}",
)
FOREIGN = ((10**9,), (0, 31), (-1,), (7, -5, 2**31 - 1))


def session(template: str = TEMPLATE) -> Session:
    off = SpeculationSettings(predictor=PredictorName.OFF)
    return Session(FakeBackend(LETTERS), ChatTemplate(template, bos="<bos>", eos="<end>"), off)


def chat(ids: tuple[int, ...] | None, content: str = "hello") -> GenerationRequest:
    said = Message("assistant", content, ids, LETTERS.identifier)
    messages = (Message("user", "abc"), said, Message("user", "def"))
    return GenerationRequest(messages=messages, max_tokens=4, seed=1)


def finished(of: Session, request: GenerationRequest) -> Finished:
    *_, last = of.generate(request, Cancellation())
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("ids", FOREIGN)
@pytest.mark.parametrize("template", [TEMPLATE, THINKING])
@pytest.mark.parametrize("content", ["hello", "<think>abc</think>hello", ""])
def test_foreign_ids_of_a_message_are_ignored(
    ids: tuple[int, ...], template: str, content: str
) -> None:
    plain = finished(session(template), chat(None, content))
    assert finished(session(template), chat(ids, content)).text == plain.text
    told = session(template).prompt_tokens(chat(ids, content).messages)
    assert told == session(template).prompt_tokens(chat(None, content).messages)


def test_ids_of_another_vocabulary_are_ignored_by_a_template_that_takes_thoughts() -> None:
    message = Message("assistant", "<think>abc</think>hello", (10**9,), "another")
    messages = (Message("user", "abc"), message, Message("user", "def"))
    plain = (messages[0], replace(message, token_ids=None), messages[2])
    assert session(THINKING).prompt_tokens(messages) == session(THINKING).prompt_tokens(plain)


@pytest.mark.parametrize("ids", FOREIGN)
def test_a_cut_reply_with_foreign_ids_continues_by_its_text(ids: tuple[int, ...]) -> None:
    plain = replace(chat(None), continues_text="abc")
    continued = replace(chat(None), continues=ids, continues_text="abc")
    assert finished(session(), continued).text == finished(session(), plain).text


@pytest.mark.parametrize("ids", FOREIGN)
def test_foreign_ids_without_a_text_are_refused(ids: tuple[int, ...]) -> None:
    one = session()
    with pytest.raises(TokenError):
        finished(one, replace(chat(None), continues=ids))
    with pytest.raises(TokenError):
        finished(one, replace(chat(None), messages=(), prompt_tokens=(0, *ids)))
    assert finished(one, chat(None)).stats.n_emitted


@pytest.fixture
def client(tmp_path: Path, starter_path: Path) -> Iterator[WorkerClient]:
    client = WorkerClient(log_path=tmp_path / "engine.log")
    client.load(Configuration(model_path=starter_path, n_ctx=512, n_threads=1))
    yield client
    client.close()


@pytest.mark.model
@pytest.mark.parametrize("number", [10**9, 2**31 - 1, 49152, -7])
def test_the_engine_outlives_a_chat_with_foreign_ids(client: WorkerClient, number: int) -> None:
    events: list[object] = []

    def came(*kinds: type) -> bool:
        events.extend(client.poll(0.1))
        return any(isinstance(event, kinds) for event in events)

    wait_until(lambda: came(Loaded, Failed, WorkerStopped))
    loaded = next(event for event in events if isinstance(event, Loaded))
    said = Message("assistant", "hello", (number,), loaded.vocabulary_id)
    messages = (Message("user", "hi"), said, Message("user", "again"))
    client.prefetch(messages[:2])
    client.generate(GenerationRequest(messages=messages, max_tokens=2))
    wait_until(lambda: came(Finished, Failed, WorkerStopped))
    assert not [event for event in events if isinstance(event, WorkerStopped | Failed)]
    assert [event for event in events if isinstance(event, PromptReady)]
