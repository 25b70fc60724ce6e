"""What a worker's cache is asked is done or answered, whether or not it keeps anything."""

from pathlib import Path
from queue import SimpleQueue

from engine.cache.report import CacheNote, CacheSettings
from engine.events import Event, TiersChanged
from engine.load import LoadedSession
from engine.process.cache_service import CACHE_OFF, CacheKeeper
from engine.process.protocol import ForgetOwner, ManageCache, Prefetch
from engine.requests import Message
from engine.testing import FakeBackend
from tests.support.fakes_client import CONFIGURATION, loaded
from tests.support.sessions import make_session
from tests.support.waiting import PATIENCE_S


class Told(SimpleQueue[Event]):
    def notes(self) -> tuple[CacheNote, ...]:
        event = self.get(timeout=PATIENCE_S)
        assert isinstance(event, TiersChanged)
        return event.report.notes


def keeper_of(told: Told, settings: CacheSettings) -> CacheKeeper:
    keeper = CacheKeeper(told.put)
    backend = FakeBackend()
    keeper.open(
        LoadedSession(make_session(target=backend), loaded(CONFIGURATION), backend), settings
    )
    return keeper


def test_without_a_cache_errands_are_dropped_and_the_user_is_told_why() -> None:
    told = Told()
    keeper = keeper_of(told, CacheSettings(warm_bytes=0, cold_bytes=0))
    for n in range(100):
        keeper.take(Prefetch((Message("user", f"chat {n}"),)))
        keeper.take(ForgetOwner(f"chat:{n}"))
    keeper.take(ManageCache("pin", "0123"))
    (note,) = told.notes()
    assert (note.is_problem, note.text) == (True, CACHE_OFF)


def test_a_cache_that_cannot_be_opened_says_so_each_time_it_is_asked(tmp_path: Path) -> None:
    told = Told()
    keeper = keeper_of(told, CacheSettings(folder=tmp_path))  # its model's file is not there
    assert [note.is_problem for note in told.notes()] == [True]
    keeper.take(Prefetch((Message("user", "chat"),)))
    keeper.take(ManageCache("clear"))
    (note,) = told.notes()
    assert CONFIGURATION.model_path.name in note.text
