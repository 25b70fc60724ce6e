"""One life of kvchat in a terminal: each operation is written down, and looked at afterwards."""

import json
import os
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.hostile_language_server import Misdeed
from tests.support.terminal import Terminal
from walker.checks import Saved, exception_in, plain, reports, wrong_counts, wrong_figures
from walker.home import Home, Servers
from walker.journal import Reader
from walker.kills import STRUCK
from walker.user import Shown

MODULE = "walker.watched"
RUN = "import runpy; runpy.run_module({!r}, run_name='__main__')"
PROBE = "\x1b[57398u"
SIZE = (120, 36)
PATIENCE_S = 45.0
"""What takes longer hangs, on a machine that has other work too."""
QUIT_S = 60.0
SAVED_S = 10.0
HOLD_S = 1.0
MOST_BYTES = 1 << 30


class FoundError(Exception):
    """Something that must hold does not."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what

    @property
    def signature(self) -> str:
        """The same for what was found twice: kind, and where it was raised."""
        places = re.findall(r'[\w./-]+\.py"?[:,](?: line )?\d+', self.what)
        errors = re.findall(r"^\W*(\w+(?:Error|Exception)\b)", self.what, re.MULTILINE)
        said = re.sub(r"\d+|'.*'", "", self.what)[:60]
        return f"{self.kind} {places[-1:] + errors[-1:] or said}"


@dataclass
class Tally:
    """What was done in all lives."""

    n_steps: int = 0
    n_lives: int = 0
    n_asked: int = 0
    n_kills: Counter[str] = field(default_factory=Counter)
    screens: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    most_bytes: int = 0
    found: Counter[str] = field(default_factory=Counter)

    def line(self, elapsed_s: float) -> str:
        """All of it as one line."""
        rate = self.n_steps / max(elapsed_s, 1e-9)
        kills = ", ".join(f"{n} {name}" for name, n in sorted(self.n_kills.items()))
        return (
            f"{self.n_steps} steps, {rate:.1f}/s, {self.n_lives} lives, {self.n_asked} questions, "
            f"{len(self.screens)} screens, {kills or 'no kills'}, "
            f"at most {self.most_bytes >> 20} MiB, found {sum(self.found.values())}"
        )


class Life:
    """One start of kvchat: the hands of its user, each of whose deeds is written down."""

    def __init__(
        self,
        home: Home,
        arguments: Sequence[str],
        servers: Servers,
        saved: Saved,
        tally: Tally,
        log: Path,
        module: str = MODULE,
    ) -> None:
        """Start it."""
        self._home, self._servers, self._saved, self._tally = home, servers, saved, tally
        self._log = log.open("w", encoding="utf-8", errors="surrogatepass")
        self.ops: list[list[object]] = []
        self._journal = Reader(home.journal)
        self._journal.new_lines()
        self._known_reports: dict[Path, int] = {}
        list(reports(home.state, self._known_reports))
        self._held: sqlite3.Connection | None = None
        self._held_until = 0.0
        self._newest = 0
        self._is_struck = False
        started = [*map(servers.address, arguments)]
        self.terminal = Terminal(RUN.format(module), started, home.environment(), home.work, SIZE)
        self.shown = Shown()

    # --- the hands ---

    def type(self, text: str) -> None:
        """Press keys, written as a terminal sends them."""
        self._note("type", text)
        self.terminal.write(text.encode(errors="surrogateescape"))

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size."""
        self._note("resize", width, height)
        self.terminal.resize(width, height)

    def strike(self, whom: str, number: int) -> None:
        """Send a signal to the `worker` or the `app`."""
        self._note("strike", whom, int(number))
        self._tally.n_kills[f"{whom} {signal.Signals(number).name}"] += 1
        for process in [self.terminal.popen.pid] if whom == "app" else self._workers():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def misbehave(self, number: int, misdeed: Misdeed) -> None:
        """Let a server do something else from now on."""
        self._note("misbehave", number, misdeed)
        self._servers.misbehave(number, misdeed)

    def hold_database(self) -> None:
        """Write to the chats from another program for a moment."""
        self._note("hold_database")
        if self._held is None and self._home.database.exists():
            held = sqlite3.connect(self._home.database, isolation_level=None, timeout=0.2)
            try:
                held.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                held.close()
            else:
                self._held, self._held_until = held, time.monotonic() + HOLD_S

    def ask(self, text: str) -> None:
        """Press enter behind a question that stands in the composer; it must be saved."""
        self._note("ask", text)
        before = self._probe()
        self.terminal.write(b"\r")
        shown = self._probe()
        if not (before.is_composing and before.written.startswith(text)):
            return
        self._tally.n_asked += 1
        if not shown.is_composing or shown.written or shown.n_waiting:
            return
        deadline = time.monotonic() + SAVED_S
        while text not in self._saved.texts:
            self._take_journal()
            if time.monotonic() > deadline:
                after = self._probe()
                if after.written or after.n_waiting or not after.is_composing:
                    return
                raise FoundError("loss", f"{text!r} was asked and is not saved")
            self.terminal.read(0.01)

    def sync(self) -> Shown:
        """Wait until everything so far is handled and painted."""
        self._note("sync")
        return self._probe()

    # --- a life ---

    def begin(self) -> None:
        """Wait until it takes keys."""
        deadline = time.monotonic() + 2 * PATIENCE_S
        while "\x1b[?1049h" not in self.terminal.tail.decode(errors="replace"):
            self.terminal.read(0.1)
            self._check_alive()
            if time.monotonic() > deadline:
                raise FoundError("hang", "it does not open")
        self._probe()

    def look(self, *, at_all: bool) -> None:
        """Check what must hold after a step.

        Args:
            at_all: At what costs more too.
        """
        self.shown = self._probe()
        self._tally.screens[self.shown.screen] += 1
        if not self.shown.is_quiet:
            raise FoundError("hang", f"messages wait in {self.shown.screen}")
        self._check_output()
        for problem in wrong_figures(self.terminal.screen.lines):
            raise FoundError("figures", problem)
        if at_all:
            self._take_journal()
            self._check_memory()
            self._check_files()
            problems, self._newest = wrong_counts(self._home.database, self._newest)
            for problem in problems:
                raise FoundError("counts", problem)

    def end(self, how: str) -> None:
        """Leave it by the key or by a signal, and look at what it left behind."""
        self._note("end", how)
        workers = self._workers()
        self._release()
        if how == "quit":
            self._tally.n_kills["quit"] += 1
            self.terminal.write(b"\x11")
            self.terminal.write(PROBE.encode())
        else:
            self.strike("app", signal.Signals[f"SIG{how}"])
        code = self.terminal.wait(QUIT_S)
        self.close_down(how, code, workers)

    def close_down(self, how: str, code: int | None, workers: Sequence[int]) -> None:
        """Check what an end, whoever asked for it, has left."""
        ended_at = time.monotonic_ns()
        self._check_output()
        if code is None:
            raise FoundError("hang", f"{how} does not end it")
        if code == -signal.SIGKILL and self._was_struck:
            how = "KILL"
            self._tally.n_kills["aimed"] += 1
        if code not in ENDS.get(how, (0,)):
            raise FoundError("end", f"{how} ended it with {code}\n{self._tail()}")
        self._check_workers(workers)
        self._take_journal()
        for problem in self._saved.lost(self._home.database, ended_at):
            raise FoundError("loss", f"after {how}: {problem}")
        self._check_files()
        problems, _ = wrong_counts(self._home.database, 0)
        for problem in problems:
            raise FoundError("counts", problem)

    def close(self) -> None:
        """End whatever is left of it."""
        self._release()
        workers = self._workers()
        self.terminal.close()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._log.close()

    # --- checks ---

    def _probe(self) -> Shown:
        screen = self.terminal.screen
        screen.strings.clear()
        if self._held is not None and time.monotonic() > self._held_until:
            self._release()
        self.terminal.write(PROBE.encode())
        deadline = time.monotonic() + PATIENCE_S
        while not screen.strings:
            self.terminal.read(0.05)
            self._check_alive()
            if self._held is not None and time.monotonic() > self._held_until:
                self._release()
            if time.monotonic() > deadline:
                raise FoundError("hang", f"no key is taken for {PATIENCE_S:.0f} s\n{self._stack()}")
        return Shown(**json.loads(screen.strings[-1]))

    def _check_alive(self) -> None:
        if self.terminal.is_alive:
            return
        code = self.terminal.wait(1.0)
        self._check_output()
        if code == 0 or (code == -signal.SIGKILL and self._was_struck):
            raise LeftError(code)
        raise FoundError("end", f"it ended by itself with {code}\n{self._tail()}")

    @property
    def _was_struck(self) -> bool:
        self._take_journal()
        return self._is_struck

    def _take_journal(self) -> None:
        lines = self._journal.new_lines()
        self._is_struck = self._is_struck or any(line["kind"] == STRUCK for line in lines)
        self._saved.take(lines)

    def _check_output(self) -> None:
        strange = self.terminal.screen.strange
        if (said := exception_in(self.terminal.tail)) is not None:
            raise FoundError("traceback", said)
        if strange:
            raise FoundError("escape", f"the terminal was sent {strange[:5]!r}")
        for report in reports(self._home.state, self._known_reports):
            raise FoundError("report", report)

    def _check_files(self) -> None:
        if changed := self._home.changed_files():
            raise FoundError("files", f"{', '.join(changed)} changed")

    def _check_memory(self) -> None:
        for pid in (self.terminal.popen.pid, *self._workers()):
            with suppress(psutil.Error):
                nbytes = psutil.Process(pid).memory_info().rss
                self._tally.most_bytes = max(self._tally.most_bytes, nbytes)
                if nbytes > MOST_BYTES:
                    raise FoundError("memory", f"process {pid} takes {nbytes >> 20} MiB")

    def _check_workers(self, workers: Sequence[int]) -> None:
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
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

    # --- how ---

    def _note(self, *op: object) -> None:
        self.ops.append([*op])
        self._log.write(json.dumps(op) + "\n")
        self._log.flush()

    def _release(self) -> None:
        if self._held is not None:
            self._held.execute("ROLLBACK")
            self._held.close()
            self._held = None

    def _tail(self) -> str:
        return plain(self.terminal.tail[-6000:])

    def _stack(self) -> str:
        """What its threads wait for, where the system tells."""
        folder = Path(f"/proc/{self.terminal.popen.pid}")
        with suppress(OSError):
            state = (folder / "status").read_text().split("State:")[1].split("\n")[0]
            return f"state {state.strip()}, last seen: {self.shown}"
        return ""


ENDS = {"KILL": (-9,), "TERM": (0, 143, -15), "HUP": (0, 129, -1), "quit": (0,)}
"""Exit codes of each end."""


class LeftError(Exception):
    """The program was left by what the user did, or killed at the moment that was chosen."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
