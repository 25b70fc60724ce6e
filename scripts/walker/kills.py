"""Kills the process that it runs in, or its partner, while something certain happens."""

import functools
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from engine.files import DRAFT_SUFFIX
from walker import AIM, JOURNAL
from walker.journal import Journal

Moment = Literal[
    "snapshot is opened",
    "snapshot is renamed",
    "snapshot is read",
    "snapshot is removed",
    "index commits",
    "chat commits",
]
Victims = Literal["worker", "app", "both"]
STRUCK = "struck"
"""Kind of the journal's line that is written before a process is killed."""
LONGEST_DELAY_S = 0.012
"""About the time in which a snapshot is written and flushed."""
WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class Aim:
    """The `nth` time that something happens, who dies, and how long after."""

    moment: Moment
    nth: int
    delay_s: float
    """0 kills before it goes on."""
    victims: Victims
    states: str
    """Folder of the saved states."""

    @classmethod
    def at_random(cls, states: Path, rng: random.Random) -> "Aim":
        """Draw one."""
        return cls(
            rng.choice(get_args(Moment)),
            rng.choice((1, 1, 2, 3, 5)),
            rng.choice((0.0, rng.random() * LONGEST_DELAY_S)),
            rng.choice(get_args(Victims)),
            str(states),
        )

    @property
    def text(self) -> str:
        """As the environment has it."""
        return json.dumps(asdict(self))


def aim_of_environment() -> Aim | None:
    """The aim of this life, if it has one."""
    text = os.environ.get(AIM)
    return None if not text else Aim(**json.loads(text))


class Striker:
    """Counts moments and strikes once."""

    def __init__(self, aim: Aim, journal: Journal, partner: Callable[[], int | None]) -> None:
        self._aim = aim
        self._journal = journal
        self._partner = partner
        self._n_seen = 0

    def happens(self, moment: Moment) -> None:
        """Note that something happens now; perhaps for the last time."""
        if moment != self._aim.moment:
            return
        self._n_seen += 1
        if self._n_seen != self._aim.nth:
            return
        if self._aim.delay_s:
            threading.Thread(target=self._strike, daemon=True).start()
        else:
            self._strike()

    def _strike(self) -> None:
        time.sleep(self._aim.delay_s)
        kill(self._aim, self._journal, self._own_role, self._partner())

    @property
    def _own_role(self) -> str:
        return "app" if self._aim.moment == "chat commits" else "worker"


def kill(aim: Aim, journal: Journal, own_role: str, partner: int | None) -> None:
    """Send SIGKILL to whom an aim names; the journal has it before."""
    other_role = "worker" if own_role == "app" else "app"
    pids = {own_role: os.getpid(), other_role: partner}
    victims = ("app", "worker") if aim.victims == "both" else (aim.victims,)
    struck = {role: pids[role] for role in victims if pids[role] is not None}
    journal.tell(STRUCK, moment=aim.moment, pids=struck)
    for role in sorted(struck, key=lambda role: role == own_role):
        pid = struck[role]
        assert pid is not None
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def watch_files(folder: Path, happens: Callable[[Moment], None]) -> None:
    """Tell when files of a folder are written, renamed, read and removed (PEP 578)."""
    inside = f"{folder}{os.sep}"

    def hook(event: str, values: tuple[object, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove"):
            return
        path = values[0]
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str | Path) or not str(path).startswith(inside):
            return
        moment = moment_of(event, str(path), values)
        if moment is not None:
            happens(moment)

    sys.addaudithook(hook)


def moment_of(event: str, path: str, values: tuple[object, ...]) -> Moment | None:
    """What an audit event of a file of the cold tier means; None where it is no snapshot."""
    is_draft = path.endswith(DRAFT_SUFFIX)
    if ".db" in Path(path).name:
        return None
    if event == "os.rename":
        return "snapshot is renamed" if is_draft else None
    if event == "os.remove":
        return None if is_draft else "snapshot is removed"
    flags = values[2]
    is_written = isinstance(flags, int) and bool(flags & WRITING)
    if is_written:
        return "snapshot is opened" if is_draft else None
    is_folder = isinstance(flags, int) and bool(flags & os.O_DIRECTORY)
    return None if is_folder or is_draft else "snapshot is read"


def watch_commits(moment: Moment, happens: Callable[[Moment], None]) -> None:
    """Tell when SQLite begins to commit, on connections made from now on.

    A change outside of a transaction is one of its own.
    """
    connect = sqlite3.connect
    kinds = ("COMMIT",) if moment == "chat commits" else ("COMMIT", "INSERT", "UPDATE", "DELETE")

    @functools.wraps(connect)
    def traced(*values: object, **named: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*values, **named)  # type: ignore[call-overload]
        connection.set_trace_callback(
            lambda statement: happens(moment) if statement.startswith(kinds) else None
        )
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]


def aim_in_worker() -> None:
    """Let the aim strike in the engine's process."""
    aim = aim_of_environment()
    if aim is None or aim.moment == "chat commits":
        return
    striker = Striker(aim, Journal(Path(os.environ[JOURNAL])), os.getppid)
    watch_files(Path(aim.states), striker.happens)
    watch_commits("index commits", striker.happens)


def aim_in_app(journal: Journal, worker: Callable[[], int | None]) -> None:
    """Let the aim strike in the application's process."""
    aim = aim_of_environment()
    if aim is not None and aim.moment == "chat commits":
        watch_commits("chat commits", Striker(aim, journal, worker).happens)
