"""The worker's own part: what it does with what a session tells."""

from collections.abc import Sequence

import pytest

from engine.backends.base import Logits
from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import AdapterError, DecodeError
from engine.events import Event, Failed, TokensCommitted, TokensCounted
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.process.protocol import CountTokens, Generate
from engine.process.worker import Worker
from engine.requests import GenerationRequest, Message
from engine.testing import TEMPLATE, FakeBackend
from tests.support.waiting import wait_until


class Failing(FakeBackend):
    """A dozen passes succeed."""

    def logits_behind(self, tokens: Sequence[int]) -> Logits:
        if self.n_decodes > 12:
            raise DecodeError("llama_decode gave -3")
        return super().logits_behind(tokens)


class Pipe:
    def __init__(self) -> None:
        self.sent: list[Event] = []

    def send(self, events: tuple[Event, ...]) -> None:
        self.sent.extend(events)


def test_what_was_committed_before_a_failure_reaches_the_front_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.process.worker.SEND_EVERY_S", 3600.0)
    pipe = Pipe()
    worker = Worker(pipe)  # type: ignore[arg-type]
    template = ChatTemplate(TEMPLATE, bos="<bos>", eos="<end>")
    off = SpeculationSettings(predictor=PredictorName.OFF)
    worker._session = Session(Failing(sharpness=2.0), template, off)
    asked = GenerationRequest((Message("user", "abc"),), max_tokens=60, seed=1)
    worker._take(Generate(asked))

    worker._do(worker._tasks.get())
    while worker._replies:
        worker._go_on()

    assert sum(isinstance(event, TokensCommitted) for event in pipe.sent) == 11
    [failed] = (event for event in pipe.sent if isinstance(event, Failed))
    assert "llama_decode gave -3" in failed.message


def test_a_text_is_counted_as_a_prompt_would_hold_it_and_each_question_is_answered() -> None:
    pipe = Pipe()
    worker = Worker(pipe)  # type: ignore[arg-type]
    worker._count(CountTokens(1, "abc"))
    assert pipe.sent == [TokensCounted(1, None)]
    pipe.sent.clear()
    backend = FakeBackend()
    template = ChatTemplate(TEMPLATE, bos="<bos>", eos="<end>")
    worker._session = Session(backend, template, SpeculationSettings())
    worker._take(CountTokens(7, "abc<end>"))
    wait_until(lambda: pipe.sent)
    n_tokens = len(backend.vocabulary.tokenize("abc<end>", add_special=False, parse_special=True))
    assert pipe.sent == [TokensCounted(7, n_tokens)]


def test_of_a_reply_that_is_refused_nothing_stays() -> None:
    class Refusing:
        def begin(self, *_: object) -> None:
            raise AdapterError("adapters are the server's")

    pipe = Pipe()
    worker = Worker(pipe)  # type: ignore[arg-type]
    for session in (None, Refusing()):
        worker._session = session  # type: ignore[assignment]
        worker._take(Generate(GenerationRequest(), 3))
        worker._try(worker._tasks.get())
    assert worker._cancellations == []
    assert len(pipe.sent) == 2
