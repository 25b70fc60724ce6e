"""What a worker's cache is asked is done or answered, whether or not it keeps anything."""

import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from engine.background import ThreadFault
from engine.cache.report import CacheNote, CacheSettings
from engine.events import Event, TiersChanged
from engine.load import LoadedSession
from engine.process import cache_service
from engine.process.cache_service import CACHE_OFF, CacheKeeper
from engine.process.protocol import ForgetOwner, ManageCache, Prefetch
from engine.requests import Message
from engine.testing import FakeBackend
from tests.engine.cache.made_up import make_cache
from tests.support.fakes_client import CONFIGURATION, loaded
from tests.support.sessions import make_session
from tests.support.waiting import PATIENCE_S

OFF = CacheSettings(warm_bytes=0, cold_bytes=0)


class Told(SimpleQueue[Event]):
    def notes(self) -> tuple[CacheNote, ...]:
        event = self.get(timeout=PATIENCE_S)
        assert isinstance(event, TiersChanged)
        return event.report.notes


def keeper_of(told: Told, settings: CacheSettings) -> tuple[CacheKeeper, LoadedSession]:
    keeper = CacheKeeper(told.put)
    backend = FakeBackend()
    session = LoadedSession(make_session(target=backend), loaded(CONFIGURATION), backend)
    keeper.open(session, settings)
    return keeper, session


def prefetch(text: str) -> Prefetch:
    return Prefetch((Message("user", text),))


def test_without_a_cache_errands_are_dropped_and_the_user_is_told_why() -> None:
    told = Told()
    keeper, _ = keeper_of(told, OFF)
    for n in range(100):
        keeper.take(prefetch(f"chat {n}"))
        keeper.take(ForgetOwner(f"chat:{n}"))
    keeper.take(ManageCache("pin", "0123"))
    (note,) = told.notes()
    assert note.is_problem
    assert note.text == CACHE_OFF
    assert not keeper._errands


def test_a_cache_that_cannot_be_opened_says_so_each_time_it_is_asked(tmp_path: Path) -> None:
    told = Told()
    keeper, _ = keeper_of(told, CacheSettings(folder=tmp_path))  # its model's file is not there
    assert [note.is_problem for note in told.notes()] == [True]
    keeper.take(prefetch("chat"))
    keeper.take(ManageCache("clear"))
    (note,) = told.notes()
    assert CONFIGURATION.model_path.name in note.text


def test_of_the_prefetches_that_wait_only_the_newest_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, done, may_open = Told(), SimpleQueue[str](), threading.Event()

    def opened(keeper: CacheKeeper, session: LoadedSession, settings: CacheSettings) -> None:
        may_open.wait(PATIENCE_S)
        keeper._tiers = SimpleNamespace(  # type: ignore[assignment]
            prefetch=lambda tokens: None,
            forget=done.put,
            has_news=lambda: False,
        )

    def prompt_tokens(messages: Sequence[Message]) -> tuple[int, ...]:
        done.put(messages[0].content)
        return ()

    monkeypatch.setattr(CacheKeeper, "_open", opened)
    monkeypatch.setattr("engine.process.cache_service.READY_S", 0.0)
    keeper, session = keeper_of(told, CacheSettings())
    monkeypatch.setattr(session.session, "prompt_tokens", prompt_tokens)
    for n in range(100):
        keeper.take(prefetch(f"chat {n}"))
    keeper.take(ForgetOwner("chat:3"))
    may_open.set()
    assert [done.get(timeout=PATIENCE_S), done.get(timeout=PATIENCE_S)] == ["chat 99", "chat:3"]


def test_a_fault_in_an_errand_is_told_and_the_next_errand_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread_faults: list[ThreadFault]
) -> None:
    told, done = Told(), SimpleQueue[str]()

    def manage(tiers: object, action: str, key: str) -> None:
        if key == "bad":
            raise PermissionError("[Errno 13] Permission denied: 'models'")
        done.put(key)

    monkeypatch.setattr(cache_service, "_manage", manage)
    monkeypatch.setattr(CacheKeeper, "_open", opened_in_memory)
    keeper, _ = keeper_of(told, CacheSettings(folder=tmp_path))
    assert not told.notes()
    keeper.take(ManageCache("pin", "bad"))
    (note,) = told.notes()
    keeper.take(ManageCache("pin", "good"))
    assert done.get(timeout=PATIENCE_S) == "good"
    assert thread_faults[0].reference in note.text
    assert note.is_problem


def opened_in_memory(keeper: CacheKeeper, loaded: object, settings: object) -> None:
    keeper._tiers = make_cache()
