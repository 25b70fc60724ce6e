"""The cache of a worker: opened beside the first replies, and told what the user asks of it."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from engine.cache.settings import CacheSettings
from engine.configuration import Configuration
from engine.events import Event
from engine.session import Session
from engine.worker_protocol import ForgetOwner, ManageCache, Prefetch

Errand = Prefetch | ManageCache | ForgetOwner


class CacheKeeper:
    """Does errands in a thread of its own: none of them keeps a reply waiting."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._errands: SimpleQueue[Errand] = SimpleQueue()

    def open(
        self, session: Session, configuration: Configuration, settings: CacheSettings
    ) -> None:
        pass

    def take(self, errand: Errand) -> None:
        self._errands.put(errand)

    def close(self, timeout_s: float) -> None:
        pass
