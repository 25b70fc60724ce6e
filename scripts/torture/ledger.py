"""What was promised and whether it was kept, which ends were ours, and the counts of it all."""

import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import load_tokens
from torture.plan import Line

ENDS = ("done", "failed", "stopped", "struck", "end")
EXPECTED_FAILURES = ("The context is full",)
NOT_RUNNING = "The engine is not running"


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
        """Everything as text."""
        lines = [f"kills: {self.n_kills}"]
        lines += [f"  {n:5}  {what}" for what, n in sorted(self.kills.items())]
        lines.append("counts:")
        lines += [f"  {n:7}  {what}" for what, n in sorted(self.counts.items())]
        found = Counter(violation.kind for violation in self.violations)
        lines.append(f"violations: {len(self.violations)}")
        lines += [f"  {found[kind]:5}  {what}" for kind, what in KINDS.items()]
        return "\n".join(lines)


@dataclass(slots=True)
class Promise:
    """One message that was said to be saved."""

    chat: int
    role: str
    content: str
    tokens: tuple[int, ...] | None = None
    is_ended: bool = False


@dataclass(slots=True)
class Ledger:
    """Every promise of every life in one home."""

    messages: dict[int, Promise] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    """Chats whose deletion was begun; who was asked may be dead."""

    def take(self, lines: Iterable[Line]) -> None:
        """Take in what lives were promised, the oldest promise first."""
        for line in lines:
            match line:
                case {"kind": "added", "id": int(key), "chat": int(chat), "role": str(role),
                      "content": str(content)}:  # fmt: skip
                    self.messages[key] = Promise(chat, role, content)
                case {"kind": "finished", "id": int(key), "chat": int(chat),
                      "content": str(content), "tokens": tokens}:  # fmt: skip
                    known = tuple(tokens) if isinstance(tokens, list) else None
                    self.messages[key] = Promise(chat, "assistant", content, known, is_ended=True)
                case {"kind": "reopening", "id": int(key)}:
                    if key in self.messages:
                        self.messages[key].is_ended = False
                case {"kind": "deleting", "chat": int(chat)}:
                    self.doubtful.add(chat)
                case {"kind": "deleted", "chat": int(chat)}:
                    self.deleted.add(chat)
                case _:
                    pass

    def broken_promises(self, path: Path) -> list[str]:
        """Open the database as kvchat does and give what is not as it was said to be."""
        try:
            with ChatStore(path) as store:
                notices = list(store.notices)
        except StoreError as error:
            return [f"the database does not open: {error}"]
        connection = sqlite3.connect(path)
        try:
            return [*notices, *_damage(connection), *self._missing(connection)]
        finally:
            connection.close()

    def _missing(self, connection: sqlite3.Connection) -> list[str]:
        rows = connection.execute("SELECT id, role, content, token_ids FROM messages").fetchall()
        stored = {row[0]: row for row in rows}
        chats = {row[0] for row in connection.execute("SELECT id FROM chats")}
        problems = [f"chat {chat} was deleted and is there" for chat in chats & self.deleted]
        for key, promise in self.messages.items():
            if promise.chat in self.deleted | self.doubtful:
                continue
            if key not in stored:
                problems.append(f"message {key} of chat {promise.chat} is gone")
            else:
                problems += _differences(key, promise, stored[key])
        return problems


def _differences(key: int, promise: Promise, row: Sequence[object]) -> list[str]:
    _, role, content, tokens = row
    assert isinstance(content, str)
    if role != promise.role:
        return [f"message {key} is of {role} and was of {promise.role}"]
    is_whole = promise.role == "user" or promise.is_ended
    if content != promise.content and (is_whole or not content.startswith(promise.content)):
        return [f"message {key} is {content!r} and was {promise.content!r}"]
    assert tokens is None or isinstance(tokens, bytes)
    if promise.is_ended and load_tokens(tokens) != promise.tokens:
        return [f"message {key} has other tokens than it had"]
    return []


def _damage(connection: sqlite3.Connection) -> list[str]:
    said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    problems = [] if said == ["ok"] else [f"integrity_check: {line}" for line in said]
    orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
    return problems + [f"foreign_key_check: {tuple(orphan)}" for orphan in orphans]


def written_by_two(lives: Sequence[Sequence[Line]]) -> list[str]:
    """The chats that a reply was made in by two lives at once, each with when."""
    spans = [span for number, lines in enumerate(lives) for span in _spans(number, lines)]
    spans.sort(key=lambda span: span[2])
    found = []
    for at, (life, owner, start, end) in enumerate(spans):
        for other, other_owner, other_start, _ in spans[at + 1 :]:
            if other_start < end and other != life and other_owner == owner:
                found.append(f"{owner} was written by two at once ({other_start - start} ns in)")
    return found


def _spans(life: int, lines: Sequence[Line]) -> list[tuple[int, str, int, int]]:
    """Life, owner, beginning and end of each reply; one without an end lasts to the last."""
    found: list[tuple[int, str, int, int]] = []
    asked: tuple[str, int] | None = None
    for line in lines:
        at, owner = line["at"], line.get("owner")
        assert isinstance(at, int)
        if asked is not None and (line["kind"] in ENDS or line is lines[-1]):
            found.append((life, asked[0], asked[1], at))
            asked = None
        if line["kind"] == "asked" and isinstance(owner, str) and owner:
            asked = owner, at
    return found


@dataclass(frozen=True, slots=True)
class Ends:
    """How an application ended, and whom the torture killed."""

    pid: int
    exit_code: int
    struck: dict[str, set[int]]
    """Processes that were killed, by their role."""

    def wrong(self, lines: Iterable[Line]) -> Iterator[tuple[Kind, str]]:
        """Every end and failure that no kill of ours explains."""
        was_killed = self.pid in self.struck["app"]
        if self.exit_code != 0 and not (was_killed and self.exit_code == -signal.SIGKILL):
            yield "crash", f"the application ended with {self.exit_code}:"
        for line in lines:
            yield from self._wrong_in(line)

    def is_late(self, line: Line) -> bool:
        """Whether a worker was killed by its client, because it took too long to end."""
        killed = line["kind"] == "closed" and line["exit_code"] == -signal.SIGKILL
        return killed and line["pid"] not in self.struck["worker"]

    def _wrong_in(self, line: Line) -> Iterator[tuple[Kind, str]]:
        was_struck = bool(self.struck["worker"])
        match line:
            case {"kind": "stopped", "exit_code": code, "message": message}:
                if code != -signal.SIGKILL or not was_struck:
                    yield "crash", f"the engine ended with {code}: {message}"
            case {"kind": "closed", "exit_code": code} if code not in (0, -signal.SIGKILL):
                yield "crash", f"the engine was closed and gave {code}"
            case {"kind": "failed", "title": str(title), "message": message}:
                if title not in EXPECTED_FAILURES and not (title == NOT_RUNNING and was_struck):
                    yield "crash", f"{title}: {message}"
            case {"kind": "lost", "message": str(message)} if not (was_struck):
                yield "hang", message
            case {"kind": "notice", "text": str(text)}:
                yield "database", text
            case _:
                pass
