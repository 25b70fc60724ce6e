"""The cache of a worker: opens the tiers and runs the user's cache commands in a thread."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from engine.background import PAUSES_S, ThreadFault, start_thread
from engine.cache.namespace import HASHES, FileHashes, namespace_of
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheNote, CacheReport, CacheSettings
from engine.cache.store import SegmentStore
from engine.errors import CacheStoreError, EngineError
from engine.events import Event, TiersChanged
from engine.load import LoadedSession
from engine.process.protocol import CacheAction, ForgetOwner, ManageCache, Prefetch

CacheCommand = Prefetch | ManageCache | ForgetOwner

READY_S = 1.0
"""How long the first reply waits for the tiers. A known model's tiers open sooner; a new model's
file is hashed whole, but has no saved states yet."""

NEWS_S = 1.0
"""Interval of the events about background work of the tiers."""

NOT_OPENED = "The cache could not be opened, so no states are saved; see the log for the reason"
CACHE_OFF = (
    "The cache is off: set enabled = true, and warm or cold above 0, under [cache] in the settings"
)


class CacheService:
    """Opens the tiers of a session and runs cache commands, in a separate thread.

    Create it before the model is loaded: a model file that is replaced after that is not mistaken
    for the one that computed the states.
    """

    def __init__(
        self, emit: Callable[[Event], None], opened: Callable[[], None] = lambda: None
    ) -> None:
        self._emit = emit
        self._opened = opened
        """Called from the cache's thread once the tiers are attached."""
        self._made_at = time.time()
        self._commands: list[CacheCommand] = []
        self._changed = threading.Condition()
        """Guards the queued commands."""
        self._refusal: str | None = None
        """Why this worker has no cache."""
        self._problem: str | None = None
        """Why the tiers are not open."""
        self._is_open = threading.Event()
        self._tiers: PrefixCache | None = None

    def open(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        """Start opening the tiers, unless they are off, and wait at most `READY_S`."""
        start_thread(
            partial(self._serve, loaded, settings),
            name="cache",
            on_fault=partial(self._report_fault, loaded),
            pauses_s=PAUSES_S,
        )
        self._is_open.wait(READY_S)

    def refuse(self, why: str) -> None:
        """Run no commands from now on; answer each with the reason `why`."""
        self._refusal = why

    def submit(self, command: CacheCommand) -> None:
        """Queue a command, which runs in parallel with the replies.

        A prefetch replaces a queued one, whose chat is no longer on screen.
        """
        if self._refusal is not None:
            if isinstance(command, ManageCache):
                note = CacheNote(time.time(), self._refusal, is_problem=True)
                self._emit(TiersChanged(CacheReport(notes=(note,))))
            return
        with self._changed:
            if isinstance(command, Prefetch):
                self._commands = [each for each in self._commands if not isinstance(each, Prefetch)]
            self._commands.append(command)
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Write unsaved states to disk; gives up after `timeout_s` seconds."""
        if self._tiers is not None:
            self._tiers.close(timeout_s)

    def _serve(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        """Open the tiers unless that was tried before, then run commands forever."""
        if not self._is_open.is_set():
            try:
                self._try_to_open(loaded, settings)
            finally:
                self._is_open.set()
        while True:
            command = self._next_command()
            if self._tiers is None:
                if isinstance(command, ManageCache):
                    self._report(loaded, self._problem)
                continue
            if command is not None:
                self._run(command, self._tiers, loaded)
            if command is not None or self._tiers.has_news():
                self._report(loaded)

    def _try_to_open(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        if settings.warm_bytes <= 0 and settings.cold_bytes <= 0:
            self._problem = CACHE_OFF
            return
        self._problem = NOT_OPENED
        try:
            self._open(loaded, settings)
            self._problem = None
        except EngineError as error:
            self._problem = f"No states are saved: {error}"
        self._report(loaded, self._problem)

    def _report_fault(self, loaded: LoadedSession, fault: ThreadFault) -> None:
        what = (
            "the cache continues with the next request"
            if fault.will_restart
            else "the cache stays off until the model is reloaded"
        )
        self._report(loaded, f"An error occurred in the cache: {fault}; {what}.")

    def _next_command(self) -> CacheCommand | None:
        """The oldest queued command; None if none arrives within `NEWS_S`."""
        with self._changed:
            self._changed.wait_for(lambda: self._commands, NEWS_S)
            return self._commands.pop(0) if self._commands else None

    def _report(self, loaded: LoadedSession, problem: str | None = None) -> None:
        report = loaded.session.cache_report()
        if problem is not None:
            note = CacheNote(time.time(), problem, is_problem=True)
            report = replace(report, notes=(*report.notes, note))
        self._emit(TiersChanged(report))

    def _open(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        backend = loaded.target
        hashes = FileHashes(None if settings.folder is None else settings.folder.parent / HASHES)
        buffers = {buffer.device for buffer in loaded.loaded.buffers}
        namespace = namespace_of(
            loaded.loaded.configuration,
            state_format=backend.state_format,
            hash_file=partial(hashes.digest, unchanged_since=self._made_at),
            gpus=sorted(name for name in buffers if not name.startswith("CPU")),
        )
        store, problem = _opened_store(settings)
        self._tiers = tiers = PrefixCache(
            namespace,
            can_slice=backend.can_slice,
            store=store,
            settings=settings,
        )
        loaded.session.attach_cache(tiers, settings)
        self._opened()
        if problem is not None:
            tiers.stats.note(problem, is_problem=True)

    def _run(self, command: CacheCommand, tiers: PrefixCache, loaded: LoadedSession) -> None:
        try:
            match command:
                case Prefetch(messages):
                    tiers.prefetch(loaded.session.prompt_tokens(messages))
                case ForgetOwner(owner):
                    tiers.forget(owner)
                case ManageCache(action, key):
                    _manage(tiers, action, key)
        except EngineError as error:
            tiers.stats.note(str(error), is_problem=True)


def _opened_store(settings: CacheSettings) -> tuple[SegmentStore | None, str | None]:
    """The store of states on disk, and the problem if it cannot be opened."""
    if settings.folder is None or settings.cold_bytes <= 0:
        return None, None
    try:
        return SegmentStore(settings.folder), None
    except CacheStoreError as error:
        return None, f"Nothing is saved on disk: {error}"


def _manage(tiers: PrefixCache, action: CacheAction, key: str) -> None:
    match action:
        case "pin":
            tiers.pin(key)
            tiers.stats.note(f"State {key} is pinned.")
        case "unpin":
            tiers.unpin(key)
            tiers.stats.note(f"State {key} is no longer pinned.")
        case "drop":
            tiers.drop(key)
            tiers.stats.note(f"State {key} was deleted.")
        case "verify":
            tiers.verify(key)
        case "clear":
            tiers.clear()
            tiers.stats.note("All saved states of this model and these settings were deleted.")
