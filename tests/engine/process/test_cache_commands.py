"""A worker without a cache still answers cache commands."""

from pathlib import Path
from queue import SimpleQueue

from engine.cache.report import CacheNote, CacheSettings
from engine.events import Event, TiersChanged
from engine.load import LoadedSession
from engine.process.cache_service import CACHE_OFF, CacheService
from engine.process.protocol import ForgetOwner, ManageCache, Prefetch
from engine.requests import Message
from engine.testing import FakeBackend
from tests.support.fakes_client import CONFIGURATION, loaded
from tests.support.sessions import make_session
from tests.support.waiting import PATIENCE_S


class Emitted(SimpleQueue[Event]):
    def notes(self) -> tuple[CacheNote, ...]:
        event = self.get(timeout=PATIENCE_S)
        assert isinstance(event, TiersChanged)
        return event.report.notes


def service_of(emitted: Emitted, settings: CacheSettings) -> CacheService:
    service = CacheService(emitted.put)
    backend = FakeBackend()
    service.open(
        LoadedSession(make_session(target=backend), loaded(CONFIGURATION), backend), settings
    )
    return service


def test_without_a_cache_commands_are_dropped_and_the_reason_is_reported() -> None:
    emitted = Emitted()
    service = service_of(emitted, CacheSettings(warm_bytes=0, cold_bytes=0))
    for n in range(100):
        service.submit(Prefetch((Message("user", f"chat {n}"),)))
        service.submit(ForgetOwner(f"chat:{n}"))
    service.submit(ManageCache("pin", "0123"))
    (note,) = emitted.notes()
    assert (note.is_problem, note.text) == (True, CACHE_OFF)


def test_a_cache_that_cannot_be_opened_reports_that_for_each_command(tmp_path: Path) -> None:
    emitted = Emitted()
    service = service_of(emitted, CacheSettings(folder=tmp_path))  # its model's file is not there
    assert [note.is_problem for note in emitted.notes()] == [True]
    service.submit(Prefetch((Message("user", "chat"),)))
    service.submit(ManageCache("clear"))
    (note,) = emitted.notes()
    assert CONFIGURATION.model_path.name in note.text
