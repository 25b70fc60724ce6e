"""The worker's own part: what it does with what a session tells."""

from collections.abc import Iterator
from typing import cast

import pytest

from engine.errors import DecodeError
from engine.events import CacheChanged, CommittedToken, Event, Failed, TokenKind, TokensCommitted
from engine.generation.session import Session
from engine.process.protocol import Generate
from engine.process.worker import Worker
from engine.requests import Cancellation, GenerationRequest

WORDS = ("one ", "two ", "three ")


class FailingSession:
    """Commits some words and fails."""

    def generate(self, request: GenerationRequest, cancellation: Cancellation) -> Iterator[Event]:
        for token, word in enumerate(WORDS):
            yield TokensCommitted((CommittedToken(token, TokenKind.PLAIN),), word)
            yield CacheChanged(1, 1, 1, 0, 1)
        raise DecodeError("llama_decode gave -3")

    def keep(self) -> None:
        return None


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
    worker._session = cast(Session, FailingSession())
    worker._take(Generate(GenerationRequest()))

    with pytest.raises(DecodeError):
        worker._do(worker._tasks.get())

    said = [event.text for event in pipe.sent if isinstance(event, TokensCommitted)]
    assert "".join(said) == "".join(WORDS)
    assert not any(isinstance(event, Failed) for event in pipe.sent)
