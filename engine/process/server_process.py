"""A llama-server process that kvchat starts, restarts after crashes and ends."""

import ipaddress
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from engine.background import start_thread
from engine.errors import ServerError
from engine.files import reason_of
from engine.process.watchdog import describe_exit, start
from engine.servers import KEY_VARIABLE, LOOPBACK

PROGRAM = "llama-server"
PATH_VARIABLE = "LLAMA_SERVER"
LOADING_S = 600.0
HEALTH_S = 5.0
POLL_S = 0.1
END_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Delays before successive restarts; the last one repeats."""
CALM_S = 300.0
"""A server that ran this long before it ended restarts after the first delay again."""
MAX_LOG = 1 << 26
"""Size in bytes above which the log is truncated: a server can run for weeks."""
LAST_BYTES = 1 << 16
LAST_LINES = 3
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Loopback address for each address that means all interfaces."""


def find_llama_server(named: str | None) -> Path:
    """Path of llama-server: `named`, else `$LLAMA_SERVER`, else the one in `$PATH`.

    Raises:
        ServerError: the program was not found.
    """
    wanted = named or os.environ.get(PATH_VARIABLE) or PROGRAM
    found = shutil.which(wanted)
    if found is None:
        raise ServerError(
            f"{wanted} was not found: build llama.cpp's llama-server (cmake -B build && "
            "cmake --build build -t llama-server), and set its path with --llama-server or "
            f"{PATH_VARIABLE}"
        )
    return Path(found)


def free_port(host: str) -> int:
    """A free TCP port of a local host.

    Raises:
        ServerError: the host is not an address of this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
            port: int = probe.getsockname()[1]
            return port
    except (OSError, UnicodeError) as error:
        raise ServerError(f"cannot listen at {host}: {reason_of(error)}") from error


def address_of(host: str, port: int) -> str:
    """Host and port as in a URL, with IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_exposed(host: str) -> bool:
    """Whether other machines may reach a server that listens on `host`."""
    if host in LOOPBACK:
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


class ServerProcess:
    """One llama-server, restarted with growing delays when it ends unexpectedly."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        url: str,
        log_path: Path,
        report: Callable[[str], None],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """Prepare the process without starting it.

        Args:
            command: The program and its arguments.
            url: Base URL of the server.
            log_path: Log of its output; deleted by `start`.
            report: Called from a thread with messages about ends and restarts.
            pauses_s: Delays in seconds before successive restarts.
        """
        self.url = url
        self.log_path = log_path
        self.n_starts = 0
        self._command = tuple(command)
        self._report = report
        self._pauses_s = tuple(pauses_s)
        self._popen: subprocess.Popen[bytes] | None = None
        # The server is local: use no proxy.
        self._directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._is_ending = threading.Event()
        self._watching: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Id of the last started process; None before the first start."""
        return None if self._popen is None else self._popen.pid

    def start(self, *, loading_s: float = LOADING_S) -> None:
        """Start the server, wait until `/health` answers, then watch it from a thread.

        Raises:
            ServerError: it cannot be started, ended while loading, or took over `loading_s`.
        """
        self.log_path.unlink(missing_ok=True)
        self._start()
        ends_at = time.monotonic() + loading_s
        try:
            while not self._answers():
                assert self._popen is not None
                if (code := self._popen.poll()) is not None:
                    raise ServerError(f"it ended while loading: {self._why(code)}")
                if time.monotonic() > ends_at:
                    raise ServerError(f"it was not ready after {loading_s:g} s: {self._last()}")
                self._is_ending.wait(POLL_S)
        except BaseException:
            self.end()
            raise
        self._watching = start_thread(
            self._watch,
            name="server",
            on_fault=lambda fault: self._report(f"kvchat stopped watching llama-server: {fault}"),
        )

    def end(self) -> None:
        """Stop the server and wait until it ended."""
        self._is_ending.set()
        self._terminate()
        if self._watching is not None:
            self._watching.join(END_S)
            self._terminate()  # it may just have been started again

    def _terminate(self) -> None:
        popen = self._popen
        if popen is not None and popen.poll() is None:
            popen.terminate()
            try:
                popen.wait(END_S)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()

    def leave(self) -> None:
        """Stop watching the server, which keeps running."""
        self._is_ending.set()

    def _start(self) -> None:
        try:
            environment = {n: value for n, value in os.environ.items() if n != KEY_VARIABLE}
            self._popen = start(self._command, self.log_path, environment=environment)
        except OSError as error:
            raise ServerError(
                f"{self._command[0]} cannot be started: {reason_of(error)}"
            ) from error
        self.n_starts += 1

    def _answers(self) -> bool:
        try:
            with self._directly.open(f"{self.url}/health", timeout=HEALTH_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def _watch(self) -> None:
        n_failed = 0
        while not self._is_ending.is_set():
            popen, since = self._popen, time.monotonic()
            assert popen is not None
            while popen.poll() is None:
                if self._is_ending.wait(POLL_S):
                    return
                self._bound_log()
            if self._is_ending.is_set():
                return
            n_failed = 0 if time.monotonic() - since > CALM_S else n_failed
            pause = self._pauses_s[min(n_failed, len(self._pauses_s) - 1)]
            n_failed += 1
            why = self._why(popen.returncode)
            self._report(f"llama-server ended: {why}; it restarts in {pause:g} s")
            if self._is_ending.wait(pause):
                return
            try:
                self._start()
            except ServerError as error:
                self._report(str(error))
                return

    def _bound_log(self) -> None:
        with suppress(FileNotFoundError):
            if self.log_path.stat().st_size > MAX_LOG:
                os.truncate(self.log_path, 0)

    def _why(self, code: int) -> str:
        return f"{describe_exit(code)}. {self._last()}"

    def _last(self) -> str:
        try:
            with self.log_path.open("rb") as log:
                log.seek(-min(self.log_path.stat().st_size, LAST_BYTES), os.SEEK_END)
                data = log.read(LAST_BYTES)
        except OSError:
            return f"its log {self.log_path} cannot be read"
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"Its log {self.log_path} ends: {' | '.join(lines[-LAST_LINES:]) or 'empty'}"
