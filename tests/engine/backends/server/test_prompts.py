"""What is sent to a server of what a chat holds: ids of its own vocabulary, else text."""

from dataclasses import replace

import pytest

from engine.backends.server.session import ServerSession
from engine.configuration import Configuration
from engine.events import Finished
from engine.requests import Cancellation, GenerationRequest, Message
from tests.support.hostile_language_server import Kind, LanguageServer, serving

ASKED = GenerationRequest(messages=(Message("user", "Hello"),))


def outcome(server: LanguageServer, request: GenerationRequest) -> tuple[object, Finished | None]:
    """The last prompt that the server received, and how the reply ended."""
    session = ServerSession(Configuration.at_server(server.url))
    generation = session.begin(request, Cancellation())
    while session.step():
        pass
    session.close()
    sent = [body for path, _, body in server.asked if path == "/completion"]
    last = generation.events[-1] if generation.events else None
    return sent[-1]["prompt"] if sent else None, last if isinstance(last, Finished) else None


def vocabulary_of(server: LanguageServer) -> str:
    session = ServerSession(Configuration.at_server(server.url))
    session.close()
    return session.loaded.vocabulary_id


@pytest.mark.parametrize("ids", [(100,), (3, 2**31 - 1), (-1,)])
def test_ids_outside_the_servers_vocabulary_are_not_sent(ids: tuple[int, ...]) -> None:
    with serving("llama-server") as server:
        answer = Message("assistant", "cat", ids, vocabulary_of(server))
        request = replace(ASKED, messages=(*ASKED.messages, answer, Message("user", "More")))
        prompt, finished = outcome(server, replace(request, continues=ids, continues_text="The"))
        asked = [number for _, _, body in server.asked for number in body.get("tokens", [])]
    assert prompt == ["<user>Hello<assistant>cat<user>More<assistant>", "The"]
    assert finished is not None
    assert finished.token_ids == ()
    assert not set(ids) & set(asked)


def test_an_edited_reply_continues_at_a_server_from_its_new_text() -> None:
    with serving("llama-server") as server:
        prompt, finished = outcome(server, replace(ASKED, continues=(0, 1), continues_text="A dog"))
    assert prompt == ["<user>Hello<assistant>", "A dog"]
    assert finished is not None
    assert finished.text == "A dogThe cat sat on the mat."
    assert finished.token_ids == (), "ids of the new text are not known"


@pytest.mark.parametrize(
    ("ids", "text", "start"),
    [((0, 1), "The cat", "The cat"), ((), "A dog", "A dog"), ((0, 1), "", "The cat")],
)
def test_a_continued_reply_that_is_cancelled_keeps_its_start(
    ids: tuple[int, ...], text: str, start: str
) -> None:
    cancellation = Cancellation()
    with serving("llama-server") as server:
        session = ServerSession(Configuration.at_server(server.url))
        server.misdeed = "silence"
        request = replace(ASKED, continues=ids, continues_text=text)
        generation = session.begin(request, cancellation)
        while not generation.reply.text.endswith("sat"):
            session.step()
        cancellation.cancel()
        session.step()
        session.close()
    finished = generation.events[-1]
    assert isinstance(finished, Finished)
    assert finished.text == f"{start}The cat sat"


@pytest.mark.parametrize("kind", ["OpenAI", "vLLM"])
def test_a_server_that_cannot_continue_a_text_refuses_instead_of_starting_again(kind: Kind) -> None:
    with serving(kind) as server:
        assert outcome(server, replace(ASKED, continues_text="A dog"))[1] is None
