"""Replies with adapters of their own: none sees what was computed with another's."""

from pathlib import Path

import pytest

from engine.configuration import Adapter, SamplingSettings
from engine.errors import AdapterError
from engine.events import Finished
from engine.generation.session import Session
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import FakeBackend
from tests.support.sessions import finished, make_session, run

STYLE = (Adapter(Path("style.gguf"), 0.5),)
STRONGER = (Adapter(Path("style.gguf"), 2.0),)


def session(n_sequences: int = 1) -> Session:
    return make_session(target=FakeBackend(n_ctx=256, n_sequences=n_sequences))


def request(adapters: tuple[Adapter, ...] | None, owner: str = "") -> GenerationRequest:
    return GenerationRequest(
        (Message("user", "a question that is long enough"),),
        sampling=SamplingSettings(),
        max_tokens=12,
        seed=1,
        owner=owner,
        adapters=adapters,
    )


def answer(asked: Session, adapters: tuple[Adapter, ...] | None) -> Finished:
    return finished(run(asked, request(adapters)))


@pytest.mark.parametrize("n_sequences", [1, 2])
def test_what_was_computed_with_other_adapters_is_never_used_again(n_sequences: int) -> None:
    alone = {each: answer(session(), each).token_ids for each in (None, STYLE, STRONGER)}
    assert len(set(alone.values())) == 3
    asked = session(n_sequences)
    for adapters in (None, STYLE, STYLE, None, STRONGER, STYLE, None):
        assert answer(asked, adapters).token_ids == alone[adapters]
    again = answer(asked, None)
    assert again.stats.n_reused > 0


def test_replies_with_unlike_adapters_are_made_at_once() -> None:
    alone = {each: answer(session(), each).token_ids for each in (None, STYLE)}
    asked = session(2)
    under_way = [
        asked.begin(request(adapters, owner=f"chat:{number}"), Cancellation())
        for number, adapters in enumerate((None, STYLE))
    ]
    ends: list[Finished] = []
    while not all(one.is_over and not one.events for one in under_way):
        for one in under_way:
            ends += [event for event in one.take() if isinstance(event, Finished)]
        asked.step()
    found = sorted(end.token_ids for end in ends)
    assert found == sorted(alone.values())


def test_an_adapter_of_another_model_fails_its_reply_and_no_other() -> None:
    asked = session()
    with pytest.raises(AdapterError, match=r"other\.bin"):
        answer(asked, (Adapter(Path("other.bin")),))
    assert answer(asked, None).token_ids == answer(session(), None).token_ids


@pytest.mark.parametrize(
    ("text", "adapter"),
    [
        ("a.gguf", Adapter(Path("a.gguf"))),
        ("a.gguf:0.5", Adapter(Path("a.gguf"), 0.5)),
        ("b:c.gguf", Adapter(Path("b:c.gguf"))),
        ("a.gguf:-1", Adapter(Path("a.gguf"), -1.0)),
        ("a.gguf:nan", Adapter(Path("a.gguf:nan"))),
        ("a:2:1.0", Adapter(Path("a:2"))),
    ],
)
def test_an_adapter_is_parsed_from_its_text(text: str, adapter: Adapter) -> None:
    assert Adapter.read(text) == adapter
    assert Adapter.read(adapter.text) == adapter
