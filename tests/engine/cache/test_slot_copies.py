"""The slot of a chat, and what is copied to it from another slot."""

from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.events import PromptReady
from engine.generation.session import Session
from engine.requests import GenerationRequest, Message
from engine.testing import FakeBackend
from tests.support.sessions import LETTERS, make_session, ready, run

SYSTEM = "abcde" * 40


def asked(session: Session, text: str, owner: str, system: str = "") -> PromptReady:
    messages = (*((Message("system", system),) if system else ()), Message("user", text))
    return ready(run(session, GenerationRequest(messages, max_tokens=2, seed=1, owner=owner)))


def two_slots() -> tuple[Session, FakeBackend]:
    backend = FakeBackend(LETTERS, n_ctx=8000, n_sequences=2)
    return make_session(target=backend), backend


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


def test_an_edited_chat_stays_in_its_slot_and_the_least_recently_used_slot_is_reused() -> None:
    session, _ = two_slots()
    first, second, third = ("abcde" * 20, "fghij" * 20, "klmno" * 20)
    asked(session, first, "chat:1")
    asked(session, second, "chat:2")
    asked(session, f"{first[:50]}xyz", "chat:1")
    assert asked(session, second, "chat:2").n_reused > len(second)
    asked(session, third, "chat:3")
    assert asked(session, second, "chat:2").n_reused > len(second)
    assert asked(session, first, "chat:1").n_reused < 50


def test_a_common_start_in_ram_is_restored_beside_another_slot_with_a_long_chat() -> None:
    session, backend = two_slots()
    settings = CacheSettings(min_tokens=4, checkpoint_tokens=0, reserve_bytes=0)
    namespace = Namespace("test", "model.gguf", ())
    tiers = PrefixCache(
        namespace, can_slice=True, store=None, settings=settings, in_background=False
    )
    session.attach_cache(tiers, settings)
    asked(session, "vwxyz" * 1000, "chat:1", SYSTEM)
    session.keep()
    n_decoded = backend.n_decoded
    found = asked(session, "zyx", "chat:2", SYSTEM)
    assert found.n_warm > len(SYSTEM)
    assert backend.n_decoded - n_decoded < 100
