"""The front end's side of the engine's process: start it, ask it, watch it, survive it.

The process is started by exec in a session of its own, with its output going to a log. A thread of
the client starts it and reads it, so that the caller's own priority is not inherited and no event
waits for the screen. A process that dies becomes a `WorkerStopped` event; one that dies while
loading is tried again without extra buffer types, and that is remembered; one that hangs is started
again, without the predictor that made it hang.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil

from engine.build_memory import BuildMemory
from engine.cache.settings import CacheSettings
from engine.configuration import Configuration, SpeculationSettings
from engine.crash import describe_exit, is_native_crash
from engine.events import Event, Failed, Finished, Loaded, WorkerStopped
from engine.hang import Hang, hang_in_silence, hang_of
from engine.requests import GenerationRequest, Message
from engine.worker_protocol import (
    Answer,
    CacheAction,
    Close,
    Command,
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

WORKER_COMMAND = (sys.executable, "-P", "-m", "engine.worker")
"""`-P` keeps the current directory off the module path: a folder `engine` there is not ours."""

LOG_TAIL_BYTES = 4000
SAVE_LIMIT_S = 5.0
POLL_S = 1.0
FALLBACK_NOTE = (
    "llama.cpp crashed at its first decode and runs without extra buffer types (AMX, repacked "
    "weights) now, which is slower on batches: rebuild it with `make llama`, see `kvchat doctor`"
)


class WorkerClient:
    """An `EngineClient` whose engine is a process.

    `silence_limit_s` is how long the process may leave a ping unanswered, and how long one call of
    a predictor may take; pings are answered from a thread of its own, so only a hung process is
    silent that long. `cache` is what the engine keeps of computed tokens; a process that is ended
    has `SAVE_LIMIT_S` to write it down.
    """

    def __init__(
        self,
        *,
        log_path: Path,
        memory_path: Path | None = None,
        costs_path: Path | None = None,
        cache: CacheSettings | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        silence_limit_s: float = 15.0,
    ) -> None:
        self._log_path = log_path
        self._memory = BuildMemory(memory_path)
        self._costs_path = costs_path
        self._cache = cache or CacheSettings(warm_bytes=0, cold_bytes=0)
        self._command = tuple(command)
        self._silence_limit_s = silence_limit_s
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._jobs: SimpleQueue[Load | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Command, Answer] | None = None
        self._watched: psutil.Process | None = None
        self._is_busy = False
        self._is_loaded = False
        self._is_closed = False
        self._heard_at = 0.0
        self._end_by: float | None = None
        """When a process that was told to end is killed."""
        self._speculation = SpeculationSettings()
        self._thread = threading.Thread(target=self._serve, name="engine-client", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    @property
    def is_alive(self) -> bool:
        return self._is_loaded and self._process is not None and self._process.poll() is None

    def load(self, configuration: Configuration) -> None:
        self._is_busy = True
        self._is_loaded = False
        self._speculation = configuration.speculation
        ending = self._process
        self._jobs.put(Load(configuration, costs_path=self._costs_path, cache=self._cache))
        self._end_process(ending)

    def generate(self, request: GenerationRequest) -> None:
        if self._is_busy:
            self._events.put(Failed("Busy", "a reply is being made: stop it first"))
            return
        self._is_busy = True
        if not self._send(Generate(request)):
            self._is_busy = False
            self._events.put(
                Failed("The engine is not running", "load a model, or restart the engine first")
            )

    def stop(self) -> None:
        self._send(Stop())

    def set_speculation(self, settings: SpeculationSettings) -> None:
        self._speculation = settings
        self._send(SetSpeculation(settings))

    def prefetch(self, messages: Sequence[Message]) -> None:
        self._send(Prefetch(tuple(messages)))

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        self._send(ManageCache(action, key))

    def forget_owner(self, owner: str) -> None:
        self._send(ForgetOwner(owner))

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        events: list[Event] = []
        with contextlib.suppress(Empty):
            if timeout_s > 0:
                events.append(self._events.get(timeout=timeout_s))
            while True:
                events.append(self._events.get_nowait())
        return events

    def process_memory_bytes(self) -> int | None:
        watched = self._watched
        if watched is None:
            return None
        try:
            return int(watched.memory_info().rss)
        except psutil.Error:
            return None

    def close(self) -> None:
        self._is_closed = True
        self._jobs.put(None)
        self._end_process(self._process)
        self._thread.join(timeout=SAVE_LIMIT_S + 5.0)

    def _serve(self) -> None:
        """Start a process for each configuration and read it until it ends; the client's thread."""
        while True:
            job = self._jobs.get()
            while job is not None:
                job = self._serve_one(job)
            if self._is_closed:
                return

    def _serve_one(self, job: Load) -> Load | None:
        """Run one process to its end; gives what to load instead, if there is something."""
        remembered = job.configuration.use_extra_buffers and self._memory.extra_buffers_crash
        if remembered:
            job = replace(job, configuration=replace(job.configuration, use_extra_buffers=False))
        try:
            process, connection = self._start()
        except OSError as error:
            self._stopped("The engine could not be started", f"{error}: check the installation", 1)
            return None
        self._send(job)
        hang = self._read_until_end(process, connection, is_fallback=remembered)
        return self._after_end(process, job, hang)

    def _start(self) -> "tuple[subprocess.Popen[bytes], Connection[Command, Answer]]":
        ours, theirs = socket.socketpair()
        self._log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with theirs, self._log_path.open("ab") as log:
            os.chmod(self._log_path, 0o600)  # noqa: PTH101  a chat's text can be in a crash report
            process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        connection: Connection[Command, Answer] = Connection(ours.detach())
        with self._lock:
            self._process, self._connection, self._end_by = process, connection, None
        with contextlib.suppress(psutil.Error):
            self._watched = psutil.Process(process.pid)
        return process, connection

    def _read_until_end(
        self,
        process: "subprocess.Popen[bytes]",
        connection: "Connection[Command, Answer]",
        *,
        is_fallback: bool,
    ) -> Hang | None:
        """Pass events on until the pipe closes; tells how the process hung if it was killed."""
        self._heard_at = time.monotonic()
        while True:
            if self._end_by is not None and time.monotonic() > self._end_by:
                process.kill()
            try:
                if connection.poll(POLL_S):
                    answer = connection.recv()
                    self._take(answer, is_fallback=is_fallback)
                    self._heard_at = time.monotonic()
                    if (hang := self._hang_told_by(answer)) is not None:
                        process.kill()
                        return hang
                    continue
            except (EOFError, OSError):
                return None
            if time.monotonic() - self._heard_at > self._silence_limit_s:
                process.kill()
                return hang_in_silence(self._speculation, self._silence_limit_s)
            self._send(Ping())

    def _hang_told_by(self, answer: Answer) -> Hang | None:
        return hang_of(answer.busy, self._silence_limit_s) if isinstance(answer, Pong) else None

    def _take(self, answer: Answer, *, is_fallback: bool) -> None:
        if not isinstance(answer, tuple) or self._end_by is not None:
            return
        for event in answer:
            if isinstance(event, Loaded | Finished | Failed):
                self._is_busy = False
            if isinstance(event, Loaded):
                self._is_loaded = True
                notes = (*event.notes, FALLBACK_NOTE) if is_fallback else event.notes
                self._events.put(replace(event, notes=notes))
            else:
                self._events.put(event)

    def _after_end(
        self,
        process: "subprocess.Popen[bytes]",
        job: Load,
        hang: Hang | None,
    ) -> Load | None:
        exit_code = process.wait()
        was_loaded, self._is_loaded = self._is_loaded, False
        self._forget_process()
        if self._is_closed or not self._jobs.empty():
            return None
        if hang is not None:
            self._stopped(
                "The engine stopped answering",
                f"{hang.message}; the engine is restarted" if was_loaded else hang.message,
                exit_code,
                will_restart=was_loaded,
            )
            return self._again(job, hang) if was_loaded else None
        if not was_loaded and is_native_crash(exit_code) and job.configuration.use_extra_buffers:
            self._memory.remember_crash()
            self._stopped(
                "llama.cpp crashed while loading",
                f"{describe_exit(exit_code)}; trying again without extra buffer types",
                exit_code,
                will_restart=True,
            )
            return job
        self._stopped(
            "The engine stopped",
            f"{describe_exit(exit_code)}. Your chat is saved. Restart the engine to go on; "
            f"the log is {self._log_path}",
            exit_code,
        )
        return None

    def _again(self, job: Load, hang: Hang) -> Load:
        """Give what to load in the place of a hung process: as it was set last, without culprit."""
        configuration = replace(job.configuration, speculation=self._speculation)
        return Load(configuration, hang.barred or job.barred, job.costs_path, job.cache)

    def _stopped(
        self, title: str, message: str, exit_code: int, *, will_restart: bool = False
    ) -> None:
        self._is_busy = will_restart
        self._events.put(WorkerStopped(title, message, exit_code, self._log_tail(), will_restart))

    def _log_tail(self) -> str:
        try:
            with self._log_path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _send(self, command: Command) -> bool:
        with self._lock:
            if self._connection is None:
                return False
            try:
                self._connection.send(command)
            except (OSError, ValueError):
                return False
            return True

    def _forget_process(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._process = self._watched = None

    def _end_process(self, process: "subprocess.Popen[bytes] | None") -> None:
        """Let a process write down what it holds, and end; it is killed when that takes long."""
        if process is None or process is not self._process:
            return
        self._end_by = time.monotonic() + SAVE_LIMIT_S
        if not self._send(Close()):
            with self._lock:
                if self._process is not None:
                    self._process.kill()
