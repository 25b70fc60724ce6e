"""Counts of a torture run, and what went wrong."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["answer", "database", "crash", "log", "leftover", "hang", "lock"]
KINDS: dict[Kind, str] = {
    "answer": "an answer is not that of an engine without a cache",
    "database": "the database lost or changed what was committed, or does not open",
    "crash": "a process ended that was not killed, or told of a failure",
    "log": "a log holds a traceback or a native fault",
    "leftover": "files of dead processes stay",
    "hang": "a process did not answer or did not end",
    "lock": "two applications wrote one chat at the same time",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    kind: Kind
    where: str
    what: str


@dataclass(slots=True)
class Tally:
    """What was done and what came of it; from any thread."""

    counts: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    said: str = "VIOLATION"
    """What a broken promise is called: in proofs it is what was to be found."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, n: int = 1) -> None:
        """Count something."""
        with self._lock:
            self.counts[what] += n

    def add_kill(self, moment: str, victims: str) -> None:
        """Count a SIGKILL by when and whom."""
        with self._lock:
            self.kills[f"{moment}: {victims}"] += 1

    def blame(self, kind: Kind, where: str, what: str) -> None:
        """Note a broken promise, and say it at once."""
        with self._lock:
            self.violations.append(Violation(kind, where, what))
        print(f"  {self.said} ({kind}) in {where}: {what}", flush=True)

    @property
    def n_kills(self) -> int:
        """How many times something was killed."""
        return sum(self.kills.values())

    def table(self) -> str:
        """Give everything as text."""
        lines = [f"kills: {self.n_kills}"]
        lines += [f"  {n:5}  {what}" for what, n in sorted(self.kills.items())]
        lines.append("counts:")
        lines += [f"  {n:7}  {what}" for what, n in sorted(self.counts.items())]
        found = Counter(violation.kind for violation in self.violations)
        lines.append(f"violations: {len(self.violations)}")
        lines += [f"  {found[kind]:5}  {what}" for kind, what in KINDS.items()]
        return "\n".join(lines)
