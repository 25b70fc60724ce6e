"""A chat that begins beside another takes over its common start only where that is worth it."""

from engine.configuration import PredictorName, SpeculationSettings
from engine.events import PromptReady
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import TEMPLATE, FakeBackend, FakeVocabulary

LETTERS = FakeVocabulary(26, ord("a"))
SYSTEM = "abcde" * 40


def asked(session: Session, text: str, owner: str, system: str = "") -> PromptReady:
    messages = (*((Message("system", system),) if system else ()), Message("user", text))
    request = GenerationRequest(messages, max_tokens=2, seed=1, owner=owner)
    events = session.generate(request, Cancellation())
    (ready,) = [event for event in events if isinstance(event, PromptReady)]
    return ready


def two_slots() -> tuple[Session, FakeBackend]:
    backend = FakeBackend(LETTERS, n_ctx=8000, n_sequences=2)
    off = SpeculationSettings(predictor=PredictorName.OFF)
    return Session(backend, ChatTemplate(TEMPLATE, bos="<bos>", eos="<end>"), off), backend


def test_a_new_chat_copies_no_state_for_the_first_tokens_of_a_template() -> None:
    session, backend = two_slots()
    asked(session, "abcde" * 600, "chat:1")
    assert asked(session, "zyx", "chat:2").n_copied == 0
    assert (backend.n_saved, backend.n_loaded) == (0, 0)


def test_a_new_chat_copies_no_long_state_for_a_short_common_start() -> None:
    session, backend = two_slots()
    asked(session, "vwxyz" * 1000, "chat:1", SYSTEM)
    assert asked(session, "zyx", "chat:2", SYSTEM).n_copied == 0
    assert (backend.n_saved, backend.n_loaded) == (0, 0)


def test_a_long_common_start_is_copied_from_the_other_slot() -> None:
    session, _ = two_slots()
    first = asked(session, "vwxyz", "chat:1", SYSTEM)
    second = asked(session, "zyx", "chat:2", SYSTEM)
    assert len(SYSTEM) < second.n_copied < first.n_prompt
