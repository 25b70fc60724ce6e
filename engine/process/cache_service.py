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
    for the one that computed the states. `opened` is called from the cache's thread once the tiers
    are attached.
    """

    def __init__(
        self, emit: Callable[[Event], None], opened: Callable[[], None] = lambda: None
    ) -> None:
        self._emit = emit
        self._opened = opened
        self._made_at = time.time()
        self._commands: list[CacheCommand] = []
        self._changed = threading.Condition()
        """Guards the queued commands."""
        self._refusal: str | None = None
        """Why this worker has no cache."""
        self._problem = NOT_OPENED
        """Why the tiers are not open."""
        self._is_tried = threading.Event()
        """Set once opening the tiers succeeded or failed."""
        self._tiers: PrefixCache | None = None

    def open(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        """Start opening the tiers, unless they are off, and wait at most `READY_S`."""
        start_thread(
            partial(self._serve, loaded, settings),
            name="cache",
            on_fault=partial(self._report_fault, loaded),
            pauses_s=PAUSES_S,
        )
        self._is_tried.wait(READY_S)

    def refuse(self, why: str) -> None:
        """Run no commands from now on; answer each with the reason `why`."""
        self._refusal = why

    def submit(self, command: CacheCommand) -> None:
        """Queue a command, which runs in parallel with the replies.

        A prefetch replaces a queued one, whose chat is no longer on screen.
        """
        if self._refusal is not None:
            if isinstance(command, ManageCache):
                self._emit(TiersChanged(_with_problem(CacheReport(), self._refusal)))
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
        if not self._is_tried.is_set():
            try:
                self._try_to_open(loaded, settings)
            finally:
                self._is_tried.set()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._commands, NEWS_S)
                command = self._commands.pop(0) if self._commands else None
            if self._tiers is None:
                if isinstance(command, ManageCache):
                    self._report(loaded, self._problem)
                continue
            if command is not None:
                _run(command, self._tiers, loaded)
            if command is not None or self._tiers.has_news():
                self._report(loaded)

    def _try_to_open(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        if settings.warm_bytes <= 0 and settings.cold_bytes <= 0:
            self._problem = CACHE_OFF
            return
        try:
            self._tiers = opened_tiers(loaded, settings, self._made_at)
        except EngineError as error:
            self._problem = f"No states are saved: {error}"
            self._report(loaded, self._problem)
            return
        loaded.session.attach_cache(self._tiers, settings)
        self._opened()
        self._report(loaded)

    def _report_fault(self, loaded: LoadedSession, fault: ThreadFault) -> None:
        self._report(loaded, f"An error occurred in the cache: {fault}.")

    def _report(self, loaded: LoadedSession, problem: str | None = None) -> None:
        report = loaded.session.cache_report()
        self._emit(TiersChanged(report if problem is None else _with_problem(report, problem)))


def _with_problem(report: CacheReport, problem: str) -> CacheReport:
    note = CacheNote(time.time(), problem, is_problem=True)
    return replace(report, notes=(*report.notes, note))


def opened_tiers(loaded: LoadedSession, settings: CacheSettings, made_at: float) -> PrefixCache:
    """The tiers of a loaded model; its file must not have changed since `made_at`."""
    hashes = FileHashes(None if settings.folder is None else settings.folder.parent / HASHES)
    devices = {buffer.device for buffer in loaded.loaded.buffers}
    namespace = namespace_of(
        loaded.loaded.configuration,
        state_format=loaded.target.state_format,
        hash_file=partial(hashes.digest, unchanged_since=made_at),
        gpus=sorted(name for name in devices if not name.startswith("CPU")),
    )
    store, problem = None, None
    if settings.folder is not None and settings.cold_bytes > 0:
        try:
            store = SegmentStore(settings.folder)
        except CacheStoreError as error:
            problem = f"Nothing is saved on disk: {error}"
    can_slice = loaded.target.can_slice
    tiers = PrefixCache(namespace, can_slice=can_slice, store=store, settings=settings)
    if problem is not None:
        tiers.stats.note(problem, is_problem=True)
    return tiers


def _run(command: CacheCommand, tiers: PrefixCache, loaded: LoadedSession) -> None:
    try:
        match command:
            case Prefetch(messages):
                tiers.prefetch(loaded.session.prompt_tokens(messages))
            case ForgetOwner(owner):
                tiers.forget(owner)
            case ManageCache(action, key):
                tiers.stats.note(_managed(tiers, action, key))
    except EngineError as error:
        tiers.stats.note(str(error), is_problem=True)


def _managed(tiers: PrefixCache, action: CacheAction, key: str) -> str:
    """Run a command on saved states; return the log message."""
    match action:
        case "pin":
            tiers.pin(key)
            return f"State {key} is pinned."
        case "unpin":
            tiers.unpin(key)
            return f"State {key} is no longer pinned."
        case "drop":
            tiers.drop(key)
            return f"State {key} was deleted."
        case "verify":
            tiers.verify(key)
            return f"State {key} is intact."
        case "clear":
            tiers.clear()
            return "All saved states of this model and these settings were deleted."
