"""The front end's side of the engine's process: starts, commands and watches it.

The process is started by exec in a new session; its output goes to a log. A thread of the client
starts it and reads its events, so that it does not inherit the caller's priority and no event
waits for the screen. Loads are numbered: events of an older load are dropped. A process that dies
becomes a `WorkerStopped` event. After a crash while loading, the load is retried without extra
buffer types. A hung process is restarted.
"""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from engine.background import PAUSES_S, ThreadFault, start_thread
from engine.cache.report import CacheSettings
from engine.configuration import Configuration, SpeculationSettings
from engine.events import Event, Failed, Finished, Loaded, OfReply, TokensCounted, WorkerStopped
from engine.process.protocol import (
    Answer,
    CacheAction,
    Close,
    Command,
    CountTokens,
    ForgetOwner,
    Generate,
    Load,
    ManageCache,
    Ping,
    Pong,
    Prefetch,
    SetSpeculation,
    Stop,
)
from engine.process.watchdog import (
    describe_exit,
    is_native_crash,
    start_piped,
    writable_log,
)
from engine.requests import GenerationRequest, Message

if TYPE_CHECKING:
    import psutil

WORKER_COMMAND = (sys.executable, "-P", "-m", "engine.process.worker")
"""`-P` keeps the current directory off the module path: it may have a folder `engine` too."""

SAVE_LIMIT_S = 5.0
POLL_S = 1.0
LOAD_CRASH = "llama.cpp crashed while it loaded the model"
LOADING_STOPPED = Failed(
    "Loading was stopped", "load a model or restart the engine to continue", fatal=True
)
NOT_RUNNING = Failed("The engine is not running", "load a model or restart the engine first")
FALLBACK_NOTE = (
    "llama.cpp crashed at its first decode and now runs without extra buffer types (AMX, "
    "repacked weights), which is slower on batches: rebuild llama.cpp with `make llama`, see "
    "`kvchat doctor`, or set use_extra_buffers = false under [engine] to avoid the crash"
)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt to open a configuration in a new process."""

    number: int
    """Number of the load; events of older loads are dropped."""
    load: Load
    is_fallback: bool = False
    """Whether the requested extra buffer types were turned off after a crash."""

    def with_settings(self, **changes: Any) -> "_Attempt":
        configuration = replace(self.load.configuration, **changes)
        return replace(self, load=replace(self.load, configuration=configuration))

    def without_extra_buffers(self) -> "_Attempt":
        return replace(self.with_settings(use_extra_buffers=False), is_fallback=True)


@dataclass(slots=True, eq=False)
class _Process:
    """One process of the engine, from its start to its end."""

    attempt: _Attempt
    popen: "subprocess.Popen[bytes]"
    connection: "Connection[Command, Answer]"
    watched: "psutil.Process | None" = None
    end_by: float | None = None
    """Monotonic time at which it is killed; None until it is asked to end."""


class WorkerClient:
    """An `EngineClient` whose engine is a process.

    A process that leaves a ping unanswered for `silence_limit_s` counts as hung; a separate thread
    answers pings, so a busy process is not silent that long. `cache` are the settings of the prefix
    cache; a closing process has `SAVE_LIMIT_S` to save it.
    """

    def __init__(
        self,
        *,
        log_path: Path,
        costs_path: Path | None = None,
        cache: CacheSettings | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        silence_limit_s: float = 15.0,
    ) -> None:
        self._log_path = log_path
        self._log_note = ""
        """Why the log has another path; empty once reported."""
        self._costs_path = costs_path
        self._cache = cache or CacheSettings(warm_bytes=0, cold_bytes=0)
        self._command = tuple(command)
        self._silence_limit_s = silence_limit_s
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._changed = threading.Condition()
        """Guards the fields below; never held during a write to the pipe."""
        self._number = 0
        """Number of the last load; stopping and closing increment it too."""
        self._next: _Attempt | None = None
        """The attempt that the thread starts next."""
        self._process: _Process | None = None
        self._is_loading = False
        self._under_way: set[int] = set()
        """Ids of the replies that have not ended."""
        self._is_loaded = False
        self._is_closed = False
        self._sending = threading.RLock()
        """Guards the pipe and the settings that were sent last."""
        self._speculation = SpeculationSettings()
        self._thread = start_thread(
            self._serve, name="engine-client", on_fault=self._lose_process, pauses_s=PAUSES_S
        )

    @property
    def is_busy(self) -> bool:
        return self._is_loading or bool(self._under_way)

    @property
    def is_alive(self) -> bool:
        process = self._process
        return self._is_loaded and process is not None and process.popen.poll() is None

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def load(self, configuration: Configuration) -> None:
        with self._sending:
            self._speculation = configuration.speculation
        self._turn_to(Load(configuration, costs_path=self._costs_path, cache=self._cache))

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        if self._is_loading or reply_id in self._under_way:
            what = "a model is being loaded" if self._is_loading else "a reply is running"
            failed = Failed("Busy", f"{what}: stop it first, or wait")
        else:
            self._under_way.add(reply_id)
            if self._is_loaded and self._send(Generate(request, reply_id)):
                return
            self._under_way.discard(reply_id)
            failed = NOT_RUNNING
        self._events.put(OfReply(reply_id, failed) if reply_id else failed)

    def stop(self, reply_id: int = 0) -> None:
        if self._is_loading:
            self._turn_to(None)
            self._events.put(LOADING_STOPPED)
        else:
            self._send(Stop(reply_id))

    def set_speculation(self, settings: SpeculationSettings) -> None:
        with self._sending:
            self._speculation = settings
            self._send(SetSpeculation(settings))

    def prefetch(self, messages: Sequence[Message]) -> None:
        self._send(Prefetch(tuple(messages)))

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        self._send(ManageCache(action, key))

    def forget_owner(self, owner: str) -> None:
        self._send(ForgetOwner(owner))

    def count_tokens(self, key: int, text: str) -> None:
        if not self._send(CountTokens(key, text)):
            self._events.put(TokensCounted(key, None))

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        events: list[Event] = []
        with contextlib.suppress(Empty):
            if timeout_s > 0:
                events.append(self._events.get(timeout=timeout_s))
            while True:
                events.append(self._events.get_nowait())
        return events

    def process_memory_bytes(self) -> int | None:
        process = self._process
        if process is None or process.watched is None:
            return None
        import psutil  # with the first process: the screen is up by then

        try:
            return int(process.watched.memory_info().rss)
        except psutil.Error:
            return None

    def begin_close(self) -> None:
        self._is_closed = True
        self._turn_to(None)

    def close(self) -> None:
        self.begin_close()
        self._thread.join(timeout=SAVE_LIMIT_S + 5.0)

    def _turn_to(self, job: Load | None) -> None:
        """Drop the present load, its replies and events; then start `job`, if any."""
        with self._changed:
            self._number += 1
            self._next = None if job is None else _Attempt(self._number, job)
            self._is_loading, self._is_loaded = job is not None, False
            self._under_way.clear()
            with contextlib.suppress(Empty):
                while True:
                    self._events.get_nowait()
            ending = self._process
            self._changed.notify()
        if ending is not None:
            self._end(ending)

    def _serve(self) -> None:
        """Body of the client's thread: start a process per load and read it until it ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._is_closed)
                attempt, self._next = self._next, None
            if self._is_closed:
                return
            while attempt is not None and self._is_current(attempt):
                attempt = self._serve_one(attempt)

    def _lose_process(self, fault: ThreadFault) -> None:
        """Kill the process, which is no longer read, and report that."""
        go_on = "Restart the engine" if fault.will_restart else "Start kvchat again"
        message = f"kvchat hit {fault}. Your chat is saved. {go_on} to continue"
        with self._changed:
            process, self._process = self._process, None
            if self._next is None:
                self._is_loading = self._is_loaded = False
                self._under_way.clear()
                self._events.put(WorkerStopped("The engine was stopped", message, None))
        if process is not None:
            process.popen.kill()
            process.popen.wait()
            self._forget(process)

    def _is_current(self, attempt: _Attempt) -> bool:
        return attempt.number == self._number

    def _serve_one(self, attempt: _Attempt) -> _Attempt | None:
        """Run one process to its end; return the next attempt, if any."""
        try:
            process = self._start(attempt)
        except OSError as error:
            title, message = "The engine could not be started", f"{error}: check the installation"
            self._emit(attempt, WorkerStopped(title, message, None))
            return None
        with self._changed:
            self._process = process
            is_current = self._is_current(attempt)
        if is_current:
            self._write(process, attempt.load)
        else:
            self._end(process)
        has_hung = self._read_until_end(process)
        try:
            exit_code = process.popen.wait(SAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            exit_code = process.popen.wait()
        self._forget(process)
        return self._after_end(attempt, exit_code, has_hung=has_hung)

    def _start(self, attempt: _Attempt) -> _Process:
        self._log_path, note = writable_log(self._log_path)
        self._log_note = self._log_note or note
        process = _Process(attempt, *start_piped(self._command, self._log_path))
        import psutil

        with contextlib.suppress(psutil.Error):
            process.watched = psutil.Process(process.popen.pid)
        return process

    def _read_until_end(self, process: _Process) -> bool:
        """Pass events on until the pipe closes; return whether the process hung and was killed.

        Each wait counts for at most its time-out: this process may have been suspended meanwhile.
        """
        silent_s = 0.0
        while True:
            began_at = time.monotonic()
            if process.end_by is not None and time.monotonic() > process.end_by:
                process.popen.kill()
            try:
                if process.connection.poll(POLL_S):
                    answer = process.connection.recv()
                    for event in () if isinstance(answer, Pong) else answer:
                        self._emit(process.attempt, self._completed(event, process))
                    silent_s = 0.0
                    continue
            except (EOFError, OSError):
                return False
            silent_s += min(time.monotonic() - began_at, POLL_S)
            if silent_s > self._silence_limit_s:
                process.popen.kill()
                return True
            # Any command that another thread is writing shows that the pipe works, too.
            if self._sending.acquire(blocking=False):
                try:
                    self._write(process, Ping())
                finally:
                    self._sending.release()

    def _completed(self, loaded: Event, process: _Process) -> Event:
        """Add notes to a `Loaded`, and apply the speculation settings that changed meanwhile."""
        if not isinstance(loaded, Loaded):
            return loaded
        if process.attempt.is_fallback:
            loaded = replace(loaded, notes=(*loaded.notes, FALLBACK_NOTE))
        if self._log_note:
            loaded = replace(loaded, notes=(*loaded.notes, self._log_note))
            self._log_note = ""
        with self._sending:
            speculation = self._speculation
            if speculation == loaded.configuration.speculation:
                return loaded
            self._write(process, SetSpeculation(speculation))
        return replace(loaded, configuration=replace(loaded.configuration, speculation=speculation))

    def _after_end(self, attempt: _Attempt, exit_code: int, *, has_hung: bool) -> _Attempt | None:
        """Report why a process ended; return the next attempt, if any."""
        was_loaded, configuration = self._is_loaded, attempt.load.configuration
        why, log, following = describe_exit(exit_code), f"see the log {self._log_path}", None
        title = "The engine stopped"
        message = f"{why}. Your chat is saved. Restart the engine to continue; {log}"
        if has_hung:
            title = "The engine stopped answering"
            message = f"it did not answer for {self._silence_limit_s:g} s"
            if was_loaded:
                message += "; the engine is restarted"
                following = attempt.with_settings(speculation=self._speculation)
        elif not was_loaded and is_native_crash(exit_code):
            title = LOAD_CRASH
            message = f"{why}. Choose another model or other settings; {log}"
            if configuration.use_extra_buffers:
                message = f"{why}; retrying without extra buffer types"
                following = attempt.without_extra_buffers()
        will_restart = following is not None
        self._emit(attempt, WorkerStopped(title, message, exit_code, will_restart))
        return following

    def _emit(self, attempt: _Attempt, event: Event) -> None:
        """Pass an event on, unless a newer load began."""
        with self._changed:
            if not self._is_current(attempt):
                return
            match event:
                case Loaded():
                    self._is_loading, self._is_loaded = False, True
                case Failed() if self._is_loading:
                    self._is_loading = False
                case Finished() | Failed():
                    self._under_way.discard(0)
                case OfReply(reply_id, Finished() | Failed()):
                    self._under_way.discard(reply_id)
                case WorkerStopped(will_restart=will_restart):
                    self._is_loading, self._is_loaded = will_restart, False
                    self._under_way.clear()
                case _:
                    pass
            self._events.put(event)

    def _send(self, command: Command) -> bool:
        process = self._process
        if process is None or process.end_by is not None:
            return False
        return self._write(process, command)

    def _write(self, process: _Process, command: Command) -> bool:
        with self._sending:
            try:
                process.connection.send(command)
            except (OSError, ValueError):
                return False
            return True

    def _forget(self, process: _Process) -> None:
        with self._changed:
            self._process = None
        with self._sending:
            process.connection.close()

    def _end(self, process: _Process) -> None:
        """Ask a process to save its cache and exit; it is killed after `SAVE_LIMIT_S`."""
        if process.end_by is None:
            process.end_by = time.monotonic() + SAVE_LIMIT_S
            if not self._write(process, Close()):
                process.popen.kill()
