"""What is sent to a server: every setting of a request, and of a chat the ids of its vocabulary."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.backends.server.session import ServerSession
from engine.configuration import Adapter, Configuration, SamplingSettings
from engine.errors import EngineError
from engine.events import Finished, FinishReason
from engine.requests import Cancellation, GenerationRequest, Grammar, Message
from tests.support.hostile_language_server import Kind, LanguageServer, serving

ASKED = GenerationRequest(messages=(Message("user", "Hello"),))
SCHEMA = Grammar('{"type": "object"}', is_schema=True, name="a.json")
OF_ALL = {"stream": True, "temperature": 0.5, "top_p": 0.75, "seed": 3, "stop": ["END"]}
OF_OPENAI = {
    "model": "tiny",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello"}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": {"type": "object"}, "strict": True},
    },
}


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


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("llama-server", {
            "prompt": ["<user>Hello<assistant>"], "n_predict": 9, "cache_prompt": True,
            "return_tokens": True, "return_progress": True, "timings_per_token": True,
            "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"], "top_k": 7,
            "min_p": 0.125, "repeat_penalty": 1.25, "repeat_last_n": 32,
            "json_schema": {"type": "object"},
            "response_fields": ["stop_type", "stopping_word", "truncated", "timings",
                                "tokens_predicted", "error"],
        }),
        ("vLLM", {
            **OF_OPENAI, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.25,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }),
        ("OpenAI", {**OF_OPENAI, "stream_options": {"include_usage": True}}),
    ],
)  # fmt: skip
def test_every_setting_that_a_server_knows_is_sent(kind: Kind, own: dict[str, object]) -> None:
    sampling = SamplingSettings(1.25, 32, 0.5, 7, 0.75, 0.125)
    request = replace(ASKED, sampling=sampling, max_tokens=9, stop=("END", ""), grammar=SCHEMA)
    with serving(kind) as server:
        outcome(server, replace(request, seed=3))
    assert [body for _, _, body in server.asked if "stream" in body] == [{**OF_ALL, **own}]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("OpenAI", {"sampling": SamplingSettings(stop_tokens=(2,))}),
        ("vLLM", {"grammar": Grammar('root ::= "a"', is_schema=False, name="a.gbnf")}),
        ("llama-server", {"grammar": Grammar('start: "a"', is_schema=False, name="a.lark")}),
        ("llama-server", {"adapters": (Adapter(Path("a.gguf")),)}),
    ],
)
def test_a_setting_that_no_server_of_the_kind_knows_is_refused(
    kind: Kind, changes: dict[str, Any]
) -> None:
    def fault(server: LanguageServer) -> EngineError | None:
        session = ServerSession(Configuration.at_server(server.url))
        try:
            generation = session.begin(replace(ASKED, **changes), Cancellation())
        except EngineError as error:
            return error
        while session.step():
            pass
        session.close()
        return generation.fault

    with serving(kind) as server:
        assert isinstance(fault(server), EngineError)
    assert not any("stream" in body for _, _, body in server.asked)


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [("llama-server", [5, 6, 0]), ("llama-server", ["One", 0]), ("vLLM", [5, 6])],
)
def test_a_prompt_of_ids_or_of_plain_text_is_sent_without_the_template(
    kind: Kind, prompt: list[int | str]
) -> None:
    asked = (
        GenerationRequest(raw_prompt="One")
        if "One" in prompt
        else GenerationRequest(prompt_tokens=(5, 6))
    )
    with serving(kind) as server:
        outcome(server, replace(asked, continues=(0,) if 0 in prompt else ()))
    assert server.asked[-1][2]["prompt"] == prompt
    assert "/apply-template" not in [path for path, _, _ in server.asked]


@pytest.mark.parametrize("kind", ["llama-server", "OpenAI"])
def test_a_prompt_is_read_in_advance_where_the_server_caches_it(kind: Kind) -> None:
    with serving(kind) as server:
        _, finished = outcome(server, GenerationRequest.preload(ASKED.messages))
    sent = [body["n_predict"] for _, _, body in server.asked if "stream" in body]
    assert sent == ([0] if kind == "llama-server" else [])
    assert finished is not None
    assert (kind == "llama-server") or finished.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("text", "sent"),
    [("The cat", [0, 1, "<user>More<assistant>"]), ("A dog", ["A dog<user>More<assistant>"])],
)
def test_an_answer_is_sent_as_the_ids_that_it_was_generated_as_until_it_is_edited(
    text: str, sent: list[int | str]
) -> None:
    with serving("llama-server") as server:
        answer = Message("assistant", text, (0, 1), vocabulary_of(server))
        request = replace(ASKED, messages=(*ASKED.messages, answer, Message("user", "More")))
        prompt, _ = outcome(server, request)
    start, *rest = sent
    begin = "<user>Hello<assistant>"
    assert prompt == ([begin, *sent] if isinstance(start, int) else [f"{begin}{start}", *rest])


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
