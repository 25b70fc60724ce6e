"""What must hold of a kvchat that is walked through: files, figures, memory, and what was saved."""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.files import DRAFT_SUFFIX
from walker.journal import Line
from walker.promises import Ledger

TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|exception was never retrieved|Exception ignored in"
    r"|Fatal Python error(?!: Segmentation fault)"
)
"""A segmentation fault is left out: the walk makes them."""
SEQUENCES = re.compile(
    r"\x1b(?:\[[<=>?]?[\d;:]*[ -/]*[@-~]|[\]_P^X][^\x07\x1b]*(?:\x07|\x1b\\)|.)", re.DOTALL
)
STREAMED_S = 2.5
"""A streamed text is saved within half a second, and within this on a machine that is busy."""
SHOWN = 5000
REPORTED = -1
"""Instead of a size: nothing of that file is new any more."""
FAULTS = "faults"
"""The folder of kvchat's own reports of what it did not expect."""
COUNTED = ("n_drafted", "n_verified", "n_examined", "n_accepted")
ACCEPT, VALIDATED, REFUTED = (  # the acceptance rate also stands below each reply, without a border
    re.compile(rf"{start}{name} +(\S+)")
    for start, name in (("│ ", "accept"), (r"\b", "validated"), (r"\b", "refuted"))
)
"""A row of the speculation panel; the reply's figure comes first."""


@dataclass
class Saved:
    """What kvchat promised to keep, by the journals of all of its lives in a home."""

    ledger: Ledger = field(default_factory=Ledger)
    texts: str = ""
    """All questions that were saved."""
    streamed: dict[int, tuple[int, str]] = field(default_factory=dict)
    """When a reply's text was in sight, by its message; until it is done."""

    def take(self, lines: Sequence[Line]) -> None:
        """Take in new lines of a journal."""
        self.ledger.take(lines)
        for line in lines:
            match line:
                case {"kind": "added", "role": "user", "content": str(content)}:
                    self.texts += f"\n{content}"
                case {"kind": "streamed", "id": int(key), "at": int(at), "text": str(text)}:
                    self.streamed[key] = at, text
                case {"kind": "finished", "id": int(key)}:
                    self.streamed.pop(key, None)
                case _:
                    pass

    def lost(self, database: Path, ended_at: int) -> list[str]:
        """What is missing in the database after an end, at `ended_at` nanoseconds."""
        if not database.exists():
            return ["the database is gone"] if self.ledger.messages else []
        problems = self.ledger.broken_promises(database)
        with sqlite3.connect(database) as connection:
            stored = dict(connection.execute("SELECT id, content FROM messages"))
        connection.close()
        for key, (at, text) in self.streamed.items():
            is_old = at < ended_at - STREAMED_S * 1e9
            if is_old and key in stored and not stored[key].startswith(text):
                problems.append(f"of message {key} {len(text)} characters were shown: {text!r}, "
                                f"{len(stored[key])} are kept: {stored[key]!r}")  # fmt: skip
        self.streamed.clear()
        return problems


def wrong_counts(database: Path, after: int) -> tuple[list[str], int]:
    """Replies behind a message whose counts do not add up, and the newest message."""
    if not database.exists():
        return [], after
    connection = sqlite3.connect(database)
    rows = connection.execute(
        "SELECT id, stats, token_ids FROM messages WHERE id > ? AND stats IS NOT NULL", (after,)
    ).fetchall()
    connection.close()
    problems = [
        f"message {key}: {problem}"
        for key, stats, tokens in rows
        for problem in wrong_stats(json.loads(stats), len(tokens or b"") // 4)
    ]
    return problems, max((row[0] for row in rows), default=after)


def wrong_stats(stats: Mapping[str, object], n_tokens: int) -> Iterator[str]:
    """Counts of one reply of so many tokens that cannot be true."""
    counts = {name: _count(stats, name) for name in COUNTED}
    drafted, verified, examined, accepted = counts.values()
    emitted, thinking = _count(stats, "n_emitted"), _count(stats, "n_thinking")
    if not drafted >= verified >= examined >= accepted >= 0:
        yield f"counts are out of order: {counts}"
    if thinking > max(emitted, n_tokens):  # the engine may have written its end
        yield f"{thinking} of thinking, {emitted} emitted, {n_tokens} kept"
    reused = stats.get("n_reused")  # None: the server does not report it
    if reused is not None and _count(stats, "n_reused") > _count(stats, "n_prompt"):
        yield f"{reused} reused of {stats['n_prompt']}"
    sources, positions = stats.get("by_source"), stats.get("by_position")
    if isinstance(sources, dict) and sources:
        yield from _wrong_sums(counts, list(sources.values()), COUNTED)
    if n_tokens and (emitted > n_tokens + 1 or (not thinking and emitted < n_tokens)):
        yield f"{emitted} emitted, {n_tokens} kept"
    if isinstance(positions, list | tuple) and positions:
        yield from _wrong_sums(counts, positions, ("n_examined", "n_accepted"))


def _wrong_sums(
    counts: Mapping[str, int], shares: Sequence[Mapping[str, object]], names: Sequence[str]
) -> Iterator[str]:
    for name in names:
        total = sum(_count(share, name) for share in shares)
        if total != counts[name]:
            yield f"{name} is {counts[name]}, its shares are {total}: {shares}"


def _count(values: Mapping[str, object], name: str) -> int:
    value = values.get(name, 0)
    assert isinstance(value, int)
    return value


def wrong_figures(lines: Sequence[str]) -> list[str]:
    """Figures of the speculation panel that contradict each other, as far as they are in sight."""
    text = "\n".join(lines)
    found = [pattern.search(text) for pattern in (ACCEPT, VALIDATED, REFUTED)]
    if not all(found):
        return []
    rate, validated, refuted = (match[1].replace(",", "") for match in found if match)
    if not (rate[0].isdecimal() and validated.isdecimal() and refuted.isdecimal()):
        return []
    accepted, verified = int(validated), int(validated) + int(refuted)
    if "/" in rate:
        is_right = rate == f"{accepted}/{verified}"
    else:
        is_right = verified > 0 and abs(int(rate.rstrip("%")) - 100 * accepted / verified) <= 1
    return [] if is_right else [f"accept {rate} beside {validated} validated, {refuted} refuted"]


def reports(state: Path, known: dict[Path, int]) -> Iterator[str]:
    """Reports of faults, and exceptions in logs, that are new since the last call.

    Args:
        state: The folder that is searched.
        known: The size of each file when it was read last; updated here.
    """
    for path in sorted(state.rglob("*")):
        if not path.is_file() or path.name.endswith(DRAFT_SUFFIX):
            continue
        size = path.stat().st_size
        if known.get(path) in (size, REPORTED):
            continue
        known[path] = size
        is_report = path.parent.name == FAULTS
        text = plain(path.read_bytes())
        match = TRACEBACK.search(text)
        if is_report or match:
            known[path] = REPORTED
            at = 0 if is_report or match is None else match.start()
            yield f"{path.name}: {text[at:][:SHOWN]}"


def plain(data: bytes) -> str:
    """Output without its sequences and empty lines."""
    text = SEQUENCES.sub("", data.decode(errors="replace"))
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())


def exception_in(data: bytes) -> str | None:
    """The end of an output that holds an exception; None where it holds none."""
    if b"Traceback" not in data and b"xception" not in data and b"Fatal Python" not in data:
        return None
    text = plain(data)
    match = TRACEBACK.search(text)
    return None if match is None else text[match.start() :][-SHOWN:]
