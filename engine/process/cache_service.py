"""The cache of a worker: opened beside the first replies, with errands that the user has for it."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from engine.background import PAUSES_S, ThreadFault, start_thread
from engine.cache.namespace import HASHES, FileHashes, namespace_of
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheNote, CacheReport, CacheSettings
from engine.cache.snapshot_store import SnapshotStore
from engine.errors import CacheStoreError, EngineError
from engine.events import Event, TiersChanged
from engine.load import LoadedSession
from engine.process.protocol import CacheAction, ForgetOwner, ManageCache, Prefetch

Errand = Prefetch | ManageCache | ForgetOwner

READY_S = 1.0
"""How long the first reply waits for the tiers. Those of a model that was opened before are there
sooner; a new model is read whole for its hash, and nothing of it is kept yet."""

NEWS_S = 1.0
"""How often an event says what the tiers did in the background."""

NOT_OPENED = "The cache could not be opened, so no states are saved; see the log for the reason"
CACHE_OFF = (
    "The cache is off: set enabled = true, and warm or cold above 0, under [cache] in the settings"
)


class CacheKeeper:
    """Opens the tiers of a session and does errands, in a thread of its own.

    It is made before the model is loaded: a model file that is replaced from then on is not taken
    for the one that made the states.
    """

    def __init__(
        self, tell: Callable[[Event], None], opened: Callable[[], None] = lambda: None
    ) -> None:
        self._tell = tell
        self._opened = opened
        """Called from the cache's thread once the tiers are attached."""
        self._made_at = time.time()
        self._errands: list[Errand] = []
        self._asked = threading.Condition()
        """Guards the errands that wait."""
        self._refusal: str | None = None
        """Why nothing is kept here."""
        self._problem: str | None = None
        """Why the tiers are not open."""
        self._is_open = threading.Event()
        self._tiers: PrefixCache | None = None

    def open(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        """Begin to open the tiers, if they may hold anything, and wait for them a moment."""
        start_thread(
            partial(self._serve, loaded, settings),
            name="cache",
            on_fault=partial(self._report_fault, loaded),
            pauses_s=PAUSES_S,
        )
        self._is_open.wait(READY_S)

    def refuse(self, why: str) -> None:
        """Do no errands; who asks for one is told why."""
        self._refusal = why

    def take(self, errand: Errand) -> None:
        """Have an errand done beside the replies, after what was asked before.

        A prefetch takes the place of one that still waits: its chat is no longer looked at.
        """
        if self._refusal is not None:
            if isinstance(errand, ManageCache):
                note = CacheNote(time.time(), self._refusal, is_problem=True)
                self._tell(TiersChanged(CacheReport(notes=(note,))))
            return
        with self._asked:
            if isinstance(errand, Prefetch):
                self._errands = [each for each in self._errands if not isinstance(each, Prefetch)]
            self._errands.append(errand)
            self._asked.notify()

    def close(self, timeout_s: float) -> None:
        """Write what is not on disk yet; gives up after `timeout_s`."""
        if self._tiers is not None:
            self._tiers.close(timeout_s)

    def _serve(self, loaded: LoadedSession, settings: CacheSettings) -> None:
        """Open the tiers where that was not tried yet, then do errands without end."""
        if not self._is_open.is_set():
            try:
                self._try_to_open(loaded, settings)
            finally:
                self._is_open.set()
        while True:
            errand = self._next_errand()
            if self._tiers is None:
                if isinstance(errand, ManageCache):
                    self._report(loaded, self._problem)
                continue
            if errand is not None:
                self._do(errand, self._tiers, loaded)
            if errand is not None or self._tiers.has_news():
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

    def _next_errand(self) -> Errand | None:
        """What was asked first, or nothing where nothing is asked for a while."""
        with self._asked:
            self._asked.wait_for(lambda: self._errands, NEWS_S)
            return self._errands.pop(0) if self._errands else None

    def _report(self, loaded: LoadedSession, problem: str | None = None) -> None:
        report = loaded.session.cache_report()
        if problem is not None:
            note = CacheNote(time.time(), problem, is_problem=True)
            report = replace(report, notes=(*report.notes, note))
        self._tell(TiersChanged(report))

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
            split_state=backend.split_state,
            store=store,
            settings=settings,
        )
        loaded.session.attach_cache(tiers, settings)
        self._opened()
        if problem is not None:
            tiers.note(problem, is_problem=True)

    def _do(self, errand: Errand, tiers: PrefixCache, loaded: LoadedSession) -> None:
        try:
            match errand:
                case Prefetch(messages):
                    tiers.prefetch(loaded.session.prompt_tokens(messages))
                case ForgetOwner(owner):
                    tiers.forget(owner)
                case ManageCache(action, key):
                    _manage(tiers, action, key)
        except EngineError as error:
            tiers.note(str(error), is_problem=True)


def _opened_store(settings: CacheSettings) -> tuple[SnapshotStore | None, str | None]:
    """The states on disk, or what keeps the disk from being used."""
    if settings.folder is None or settings.cold_bytes <= 0:
        return None, None
    try:
        return SnapshotStore(settings.folder), None
    except CacheStoreError as error:
        return None, f"Nothing is saved on disk: {error}"


def _manage(tiers: PrefixCache, action: CacheAction, key: str) -> None:
    match action:
        case "pin":
            tiers.pin(key)
            tiers.note(f"State {key} is pinned.")
        case "unpin":
            tiers.unpin(key)
            tiers.note(f"State {key} is no longer pinned.")
        case "drop":
            tiers.drop(key)
            tiers.note(f"State {key} was deleted.")
        case "verify":
            tiers.verify(key)
        case "clear":
            tiers.clear()
            tiers.note("All saved states of this model and these settings were deleted.")
