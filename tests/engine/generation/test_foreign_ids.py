"""A chat file may hold any numbers as token ids: none that is no token reaches the vocabulary."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import TokenError
from engine.events import Finished
from engine.generation.session import Session
from engine.process.blocking_client import BlockingClient
from engine.process.client import WorkerClient
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import TEMPLATE
from tests.support.sessions import LETTERS, finished, make_session, run
from tests.support.waiting import PATIENCE_S

THINKING = TEMPLATE.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}",
)
FOREIGN = ((10**9,), (0, 31), (-1,), (7, -5, 2**31 - 1))


def chat(ids: tuple[int, ...] | None, content: str = "hello") -> GenerationRequest:
    answer = Message("assistant", content, ids, LETTERS.identifier)
    messages = (Message("user", "abc"), answer, Message("user", "def"))
    return GenerationRequest(messages=messages, max_tokens=4, seed=1)


def reply(of: Session, asked: GenerationRequest) -> Finished:
    return finished(run(of, asked))


@pytest.mark.parametrize("ids", FOREIGN)
@pytest.mark.parametrize("template", [TEMPLATE, THINKING])
@pytest.mark.parametrize("content", ["hello", "<think>abc</think>hello", ""])
def test_foreign_ids_of_a_message_are_ignored(
    ids: tuple[int, ...], template: str, content: str
) -> None:
    plain = reply(make_session(template=template), chat(None, content))
    assert reply(make_session(template=template), chat(ids, content)).text == plain.text
    tokens = make_session(template=template).prompt_tokens(chat(ids, content).messages)
    assert tokens == make_session(template=template).prompt_tokens(chat(None, content).messages)


def test_ids_of_another_vocabulary_are_ignored_by_a_template_that_takes_thoughts() -> None:
    message = Message("assistant", "<think>abc</think>hello", (10**9,), "another")
    messages = (Message("user", "abc"), message, Message("user", "def"))
    plain = (messages[0], replace(message, token_ids=None), messages[2])
    assert make_session(template=THINKING).prompt_tokens(messages) == make_session(
        template=THINKING
    ).prompt_tokens(plain)


@pytest.mark.parametrize("ids", FOREIGN)
def test_a_cut_reply_with_foreign_ids_continues_by_its_text(ids: tuple[int, ...]) -> None:
    plain = replace(chat(None), continues_text="abc")
    continued = replace(chat(None), continues=ids, continues_text="abc")
    assert reply(make_session(), continued).text == reply(make_session(), plain).text


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_text_that_the_vocabulary_does_not_have_stays_as_it_was_given(is_begun: bool) -> None:
    given = "3 é [ß]"
    asked = replace(chat(None), continues_text=given)
    cancellation = Cancellation()
    if not is_begun:
        cancellation.cancel()
    found = finished(list(make_session().generate(asked, cancellation)))
    assert found.token_ids
    assert found.text.startswith(given)
    assert (found.text == given) is not is_begun


@pytest.mark.parametrize("ids", FOREIGN)
def test_foreign_ids_without_a_text_are_refused(ids: tuple[int, ...]) -> None:
    one = make_session()
    with pytest.raises(TokenError):
        reply(one, replace(chat(None), continues=ids))
    with pytest.raises(TokenError):
        reply(one, replace(chat(None), messages=(), prompt_tokens=(0, *ids)))
    assert reply(one, chat(None)).stats.n_emitted


@pytest.mark.model
def test_the_engine_outlives_a_chat_with_foreign_ids(tmp_path: Path, starter_path: Path) -> None:
    client = WorkerClient(log_path=tmp_path / "engine.log")
    engine = BlockingClient(client, limit_s=PATIENCE_S)
    loaded = engine.load(Configuration(model_path=starter_path, n_ctx=512, n_threads=1))
    for number in (10**9, 2**31 - 1, 49152, -7):
        answer = Message("assistant", "hello", (number,), loaded.vocabulary_id)
        messages = (Message("user", "hi"), answer, Message("user", "again"))
        client.prefetch(messages[:2])
        *_, last = engine.reply(GenerationRequest(messages=messages, max_tokens=2))
        assert isinstance(last, Finished)
    client.close()
