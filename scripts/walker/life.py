"""One life of kvchat in a terminal: the operations of its user are logged, and checked."""

import json
import os
import re
import signal
import sqlite3
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.hostile_language_server import Misdeed
from tests.support.terminal import Terminal
from walker.checks import exception_in, plain, reports, wrong_counts, wrong_figures
from walker.home import Home, Servers

MODULE = "walker.watched"
RUN = "import runpy; runpy.run_module({!r}, run_name='__main__')"
PROBE = "\x1b[57398u"
SIZE = (120, 36)
PATIENCE_S = 45.0
"""An operation that takes longer hangs, even on a busy machine."""
STARVED_S = 5.0
"""Processor seconds within that time, below which a running kvchat was not given the processor."""
STACKS_S = 1.0
"""Time in which kvchat writes where its threads are."""
QUIT_S = 60.0
SAVED_S = 10.0
HOLD_S = 1.0
MAX_BYTES = 1 << 30
END_CODES = {"KILL": (-9,), "TERM": (0, 143, -15), "HUP": (0, 129, -1), "quit": (0,)}
"""Exit codes by the way in which kvchat is ended."""


class FoundError(Exception):
    """A check failed."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what

    @property
    def signature(self) -> str:
        """The kind and where it was raised: equal for two findings of one fault."""
        places = re.findall(r'[\w./-]+\.py"?[:,](?: line )?\d+', self.what)
        errors = re.findall(r"^\W*(\w+(?:Error|Exception)\b)", self.what, re.MULTILINE)
        start = re.sub(r"\d+|'.*'", "", self.what)[:60]
        return f"{self.kind} {places[-1:] + errors[-1:] or start}"


class LeftError(Exception):
    """kvchat was left by a key of its user, or killed at the moment of its aim."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Shown:
    """The screen of the watched kvchat, as it answers a probe."""

    screen: str = ""
    focus: str = ""
    written: str = ""
    """Start of the composer's text."""
    n_waiting: int = 0
    is_replying: bool = False
    is_quiet: bool = True

    @property
    def is_composing(self) -> bool:
        """Whether typed text becomes a question."""
        return self.screen == "ChatScreen" and self.focus == "composer"


@dataclass
class Tally:
    """Counts of all lives."""

    n_steps: int = 0
    n_lives: int = 0
    n_asked: int = 0
    n_kills: Counter[str] = field(default_factory=Counter)
    screens: Counter[str] = field(default_factory=Counter)
    max_bytes: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """Findings by signature."""

    def line(self, elapsed_s: float) -> str:
        """The counts as one line."""
        rate = self.n_steps / max(elapsed_s, 1e-9)
        kills = ", ".join(f"{n} {name}" for name, n in sorted(self.n_kills.items()))
        return (
            f"{self.n_steps} steps, {rate:.1f}/s, {self.n_lives} lives, {self.n_asked} questions, "
            f"{len(self.screens)} screens, {kills or 'no kills'}, "
            f"at most {self.max_bytes >> 20} MiB, found {self.found.total()}"
        )


class Life:
    """One start of kvchat, and every operation of its user."""

    def __init__(
        self,
        home: Home,
        arguments: Sequence[str],
        servers: Servers,
        tally: Tally,
        log: Path,
        module: str = MODULE,
    ) -> None:
        self.home, self.arguments, self._servers, self._tally = home, arguments, servers, tally
        self.acts: list[str] = []
        self.shown = Shown()
        self._log = log.open("w", encoding="utf-8", errors="surrogatepass")
        home.ledger.begin_life()
        self._known_reports: dict[Path, int] = {}
        list(reports(home.state, self._known_reports))
        self._held: sqlite3.Connection | None = None
        self._held_until = 0.0
        self._newest = 0
        started = [*map(servers.address, arguments)]
        self.terminal = Terminal(RUN.format(module), started, home.environment, home.work, SIZE)

    # --- operations, which a replay calls by their names ---

    def type(self, text: str) -> None:
        """Press keys, given as a terminal sends them."""
        self._note("type", text)
        self.terminal.write(text.encode(errors="surrogateescape"))

    def resize(self, width: int, height: int) -> None:
        """Resize the terminal."""
        self._note("resize", width, height)
        self.terminal.resize(width, height)

    def strike(self, whom: str, number: int) -> None:
        """Send a signal to the `worker` or the `app`."""
        self._note("strike", whom, int(number))
        self._tally.n_kills[f"{whom} {signal.Signals(number).name}"] += 1
        _send([self.terminal.popen.pid] if whom == "app" else self._workers(), number)

    def misbehave(self, number: int, misdeed: Misdeed) -> None:
        """Change what a server does from now on."""
        self._note("misbehave", number, misdeed)
        self._servers.misbehave(number, misdeed)

    def hold_database(self) -> None:
        """Lock the database of chats as another program, for a moment."""
        self._note("hold_database")
        if self._held is None and self.home.database.exists():
            self._held = sqlite3.connect(self.home.database, isolation_level=None, timeout=0.2)
            self._held_until = time.monotonic() + HOLD_S
            with suppress(sqlite3.OperationalError):  # kvchat writes
                self._held.execute("BEGIN IMMEDIATE")

    def ask(self, text: str) -> None:
        """Press enter after a question in the composer, and check that it is saved."""
        self._note("ask", text)
        before = self._probe()
        self.terminal.write(b"\r")
        shown = self._probe()
        if not (before.is_composing and before.written.startswith(text)):
            return
        self._tally.n_asked += 1
        if not _is_sent(shown) or self._waited(lambda: self._is_saved(text), SAVED_S):
            return
        if _is_sent(self._probe()):
            raise FoundError("loss", f"{text!r} was asked and is not saved")

    def sync(self) -> Shown:
        """Wait until everything so far is handled and painted."""
        self._note("sync")
        return self._probe()

    def end(self, how: str) -> None:
        """End kvchat by its key (`quit`) or a signal, and check what is left."""
        self._note("end", how)
        workers = self._workers()
        self._release()
        if how == "quit":
            self._tally.n_kills["quit"] += 1
            self.terminal.write(b"\x11")
            self.terminal.write(PROBE.encode())
        else:
            number = signal.Signals[f"SIG{how}"]
            self._tally.n_kills[f"app {number.name}"] += 1
            _send([self.terminal.popen.pid], number)
        self.check_end(how, self.terminal.wait(QUIT_S), workers)

    # --- a life ---

    @contextmanager
    def may_be_left(self) -> Iterator[None]:
        """Check the end of kvchat if it is left in the block."""
        try:
            yield
        except LeftError as error:
            self.check_end("quit", error.code)

    def begin(self) -> None:
        """Wait until kvchat handles keys."""
        opened = b"\x1b[?1049h"
        if not self._waited(lambda: opened in self.terminal.tail, 2 * PATIENCE_S):
            raise FoundError("hang", "it does not open")
        self._probe()

    def look(self, *, is_thorough: bool) -> None:
        """Check what must hold after a step; a thorough check takes longer."""
        self.shown = self._probe()
        self._tally.screens[self.shown.screen] += 1
        if not self.shown.is_quiet:
            raise FoundError("hang", f"messages wait in {self.shown.screen}")
        self._check_output()
        _require_none("figures", wrong_figures(self.terminal.screen.lines))
        if is_thorough:
            self.home.ledger.read()
            self._check_memory()
            _require_none("files", self.home.changed_files())
            problems, self._newest = wrong_counts(self.home.database, self._newest)
            _require_none("counts", problems)

    def check_end(self, how: str, code: int | None, workers: Sequence[int] = ()) -> None:
        """Check what an end of kvchat with this exit code has left."""
        ended_at = time.monotonic_ns()
        self._check_output()
        if code is None:
            raise FoundError("hang", f"{how} does not end it")
        if self._is_aimed(code):
            how = "KILL"
            self._tally.n_kills["aimed"] += 1
        if code not in END_CODES[how]:
            raise FoundError("end", f"{how} ended it with {code}\n{self._tail()}")
        self._check_workers(workers)
        self.home.ledger.read()
        losses = self.home.ledger.losses(ended_at)
        _require_none("loss", (f"after {how}: {problem}" for problem in losses))
        _require_none("files", self.home.changed_files())
        _require_none("counts", wrong_counts(self.home.database, 0)[0])

    def close(self) -> None:
        """End every process that is left."""
        self._release()
        workers = self._workers()
        self.terminal.close()
        _send(workers, signal.SIGKILL)
        self._log.close()

    # --- checks ---

    def _probe(self) -> Shown:
        answers = self.terminal.screen.strings
        answers.clear()
        self.terminal.write(PROBE.encode())
        began_s = self._busy_s()
        while not self._waited(lambda: bool(answers), PATIENCE_S, releases=True):
            if not 0 < self._busy_s() - began_s < STARVED_S:  # else other programs have the cores
                why = f"no key is handled for {PATIENCE_S:.0f} s\n{self._state()}"
                raise FoundError("hang", why)
        return Shown(**json.loads(answers[-1]))

    def _waited(
        self, is_done: Callable[[], bool], limit_s: float, *, releases: bool = False
    ) -> bool:
        """Whether something happens in time; meanwhile kvchat's output is read."""
        deadline = time.monotonic() + limit_s
        while not is_done():
            if releases and time.monotonic() > self._held_until:
                self._release()
            self.terminal.read(0.02)
            self._check_alive()
            if time.monotonic() > deadline:
                return False
        return True

    def _is_saved(self, question: str) -> bool:
        self.home.ledger.read()
        return question in self.home.ledger.questions

    def _check_alive(self) -> None:
        if self.terminal.is_alive:
            return
        code = self.terminal.wait(1.0)
        self._check_output()
        if code is not None and (code == 0 or self._is_aimed(code)):
            raise LeftError(code)
        raise FoundError("end", f"it ended by itself with {code}\n{self._tail()}")

    def _is_aimed(self, code: int) -> bool:
        self.home.ledger.read()
        return code == -signal.SIGKILL and self.home.ledger.is_struck

    def _check_output(self) -> None:
        if (text := exception_in(self.terminal.tail)) is not None:
            raise FoundError("traceback", text)
        # While kvchat saves and ends, the terminal itself echoes what is typed.
        echoed = "\t" if self.terminal.modes[3] & termios.ECHO else None
        if strange := [each for each in self.terminal.screen.strange if each != echoed]:
            raise FoundError("escape", f"the terminal was sent {strange[:5]!r}")
        _require_none("report", reports(self.home.state, self._known_reports))

    def _check_memory(self) -> None:
        for pid in (self.terminal.popen.pid, *self._workers()):
            with suppress(psutil.Error):
                nbytes = psutil.Process(pid).memory_info().rss
                self._tally.max_bytes = max(self._tally.max_bytes, nbytes)
                if nbytes > MAX_BYTES:
                    raise FoundError("memory", f"process {pid} uses {nbytes >> 20} MiB")

    def _check_workers(self, workers: Sequence[int]) -> None:
        _send(workers, signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE_S
        while left := [pid for pid in workers if _runs(pid)]:
            if time.monotonic() > deadline:
                raise FoundError("leftover", f"engines {left} outlive the application")
            time.sleep(0.02)

    def _workers(self) -> list[int]:
        try:
            children = psutil.Process(self.terminal.popen.pid).children(recursive=True)
        except psutil.Error:
            return []
        return [child.pid for child in children]

    def _note(self, *op: object) -> None:
        self._log.write(json.dumps(op) + "\n")
        self._log.flush()

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def _tail(self) -> str:
        return plain(self.terminal.tail[-6000:])

    def _busy_s(self) -> float:
        """Processor seconds that kvchat has used; 0 if it has ended."""
        with suppress(psutil.Error):
            times = psutil.Process(self.terminal.popen.pid).cpu_times()
            return times.user + times.system
        return 0.0

    def _state(self) -> str:
        """The state of the process and of the screen, and where each thread is."""
        with suppress(psutil.Error, OSError):
            state = psutil.Process(self.terminal.popen.pid).status()
            _send([self.terminal.popen.pid], signal.SIGUSR1)
            time.sleep(STACKS_S)
            stacks = (self.home.folder / "journal.stacks").read_text()
            return f"state {state}, last seen: {self.shown}\n{stacks}"
        return ""


def _is_sent(shown: Shown) -> bool:
    """Whether a question left the composer."""
    return shown.is_composing and not shown.written and not shown.n_waiting


def _require_none(kind: str, problems: Iterable[str]) -> None:
    for problem in problems:
        raise FoundError(kind, problem)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
