"""Kill kvchat, its engine or both at a chosen moment.

Run as a program, this is the engine's process with that kill in it.
"""

import functools
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from engine.files import DRAFT_SUFFIX
from walker.journal import JOURNAL, Journal

AIM = "KVCHAT_WALK_AIM"
"""Environment variable with the `Aim` as JSON; empty if the life has none."""
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
"""Kind of the journal's line before a kill."""
MAX_DELAY_S = 0.012
"""About the time in which a saved state is written and flushed."""
WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class Aim:
    """The kill: at the `nth` time of a moment, after a delay."""

    moment: Moment
    nth: int
    delay_s: float
    """0 kills before the operation."""
    victims: Victims
    states: str
    """Folder of the saved states."""

    @classmethod
    def at_random(cls, states: Path, rng: random.Random) -> "Aim":
        """Draw an aim."""
        return cls(
            rng.choice(get_args(Moment)),
            rng.choice((1, 1, 2, 3, 5)),
            rng.choice((0.0, rng.random() * MAX_DELAY_S)),
            rng.choice(get_args(Victims)),
            str(states),
        )

    @property
    def text(self) -> str:
        """The aim as JSON."""
        return json.dumps(asdict(self))


def aim_of_environment() -> Aim | None:
    """The aim of this life, or None."""
    text = os.environ.get(AIM)
    return None if not text else Aim(**json.loads(text))


class Striker:
    """Counts the moments of an aim, and kills once.

    Args:
        aim: The kill.
        journal: Reports it.
        pids: The processes by role, the own one last; None if there is none.
    """

    def __init__(
        self, aim: Aim, journal: Journal, pids: Mapping[str, Callable[[], int | None]]
    ) -> None:
        self._aim, self._journal, self._pids = aim, journal, pids
        self._n_seen = 0

    def happens(self, moment: Moment) -> None:
        """Count a moment; the aimed one kills."""
        if moment != self._aim.moment:
            return
        self._n_seen += 1
        if self._n_seen == self._aim.nth:
            if self._aim.delay_s:
                threading.Thread(target=self._strike, daemon=True).start()
            else:
                self._strike()

    def _strike(self) -> None:
        time.sleep(self._aim.delay_s)
        victims = self._aim.victims
        pids = {role: pid() for role, pid in self._pids.items() if victims in (role, "both")}
        self._journal.write(STRUCK, moment=self._aim.moment, pids=pids)
        for pid in pids.values():
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def watch_files(folder: Path, happens: Callable[[Moment], None]) -> None:
    """Report the moments of saved states in a folder, by audit events (PEP 578)."""
    inside = f"{folder}{os.sep}"

    def hook(event: str, values: tuple[object, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove"):
            return
        path = values[0]
        if not isinstance(path, str | bytes | Path) or not os.fsdecode(path).startswith(inside):
            return
        moment = moment_of(event, os.fsdecode(path), values)
        if moment is not None:
            happens(moment)

    sys.addaudithook(hook)


def moment_of(event: str, path: str, values: tuple[object, ...]) -> Moment | None:
    """The moment that an audit event means; None if the file is no saved state."""
    is_draft = path.endswith(DRAFT_SUFFIX)
    if ".db" in Path(path).name:
        return None
    if event == "os.rename":
        return "snapshot is renamed" if is_draft else None
    if event == "os.remove":
        return None if is_draft else "snapshot is removed"
    flags = values[2] if isinstance(values[2], int) else 0
    if flags & WRITING:
        return "snapshot is opened" if is_draft else None
    return None if flags & os.O_DIRECTORY or is_draft else "snapshot is read"


def watch_commits(moment: Moment, happens: Callable[[Moment], None]) -> None:
    """Report commits of SQLite, on connections opened from now on.

    Outside of a transaction a change commits by itself.
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
    """Let the aim of this life kill from the engine's process."""
    aim = aim_of_environment()
    if aim is None or aim.moment == "chat commits":
        return
    pids = {"app": os.getppid, "worker": os.getpid}
    striker = Striker(aim, Journal(Path(os.environ[JOURNAL])), pids)
    watch_files(Path(aim.states), striker.happens)
    watch_commits("index commits", striker.happens)


def aim_in_app(journal: Journal, worker: Callable[[], int | None]) -> None:
    """Let the aim of this life kill from the application's process."""
    aim = aim_of_environment()
    if aim is not None and aim.moment == "chat commits":
        pids = {"worker": worker, "app": os.getpid}
        watch_commits("chat commits", Striker(aim, journal, pids).happens)


if __name__ == "__main__":
    from engine.process import worker

    aim_in_worker()
    worker.main()
