"""What must hold of a kvchat that is walked through: counts, figures, logs and fault reports."""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from engine.files import DRAFT_SUFFIX
from tests.support.terminal import SEQUENCE

TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|exception was never retrieved|Exception ignored in"
    r"|Fatal Python error(?!: Segmentation fault)"
)
"""A segmentation fault is left out: the walk causes them."""
MAX_SHOWN = 5000
REPORTED = -1
"""In place of a size: the file was reported and is not read again."""
FAULTS = "faults"
"""Folder of kvchat's reports of unexpected errors."""
COUNTED = ("n_drafted", "n_verified", "n_examined", "n_accepted")
ACCEPT, VALIDATED, REFUTED = (  # the acceptance rate also stands below each reply, without a border
    re.compile(rf"{start}{name} +(\S+)")
    for start, name in (("│ ", "accept"), (r"\b", "validated"), (r"\b", "refuted"))
)
"""A row of the speculation panel; the reply's figure comes first."""


def wrong_counts(database: Path, after: int) -> tuple[list[str], int]:
    """Errors in the counts of replies newer than message `after`, and the newest message."""
    if not database.exists():
        return [], after
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT id, stats, token_ids FROM messages WHERE id > ? AND stats IS NOT NULL", (after,)
        ).fetchall()
    problems = [
        f"message {key}: {problem}"
        for key, stats, tokens in rows
        for problem in wrong_stats(json.loads(stats), len(tokens or b"") // 4)
    ]
    return problems, max((row[0] for row in rows), default=after)


def wrong_stats(stats: Mapping[str, object], n_tokens: int) -> Iterator[str]:
    """Contradictions in the counts of one reply of `n_tokens` tokens."""
    counts = {name: _count(stats, name) for name in COUNTED}
    drafted, verified, examined, accepted = counts.values()
    emitted, thinking = _count(stats, "n_emitted"), _count(stats, "n_thinking")
    if not drafted >= verified >= examined >= accepted >= 0:
        yield f"counts are out of order: {counts}"
    if thinking > max(emitted, n_tokens):  # the engine may have written its end
        yield f"{thinking} of thinking, {emitted} emitted, {n_tokens} saved"
    reused = stats.get("n_reused")  # None: the server does not report it
    if reused is not None and _count(stats, "n_reused") > _count(stats, "n_prompt"):
        yield f"{reused} reused of {stats['n_prompt']}"
    sources, positions = stats.get("by_source"), stats.get("by_position")
    if isinstance(sources, dict) and sources:
        yield from _wrong_sums(counts, list(sources.values()), COUNTED)
    if n_tokens and (emitted > n_tokens + 1 or (not thinking and emitted < n_tokens)):
        yield f"{emitted} emitted, {n_tokens} saved"
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
    """Contradictions between the figures of the speculation panel on a screen."""
    text = "\n".join(lines)
    found = [pattern.search(text) for pattern in (ACCEPT, VALIDATED, REFUTED)]
    rate, validated, refuted = (match[1].replace(",", "") if match else "" for match in found)
    if not (rate[:1].isdecimal() and validated.isdecimal() and refuted.isdecimal()):
        return []
    accepted, verified = int(validated), int(validated) + int(refuted)
    if "/" in rate:
        is_right = rate == f"{accepted}/{verified}"
    else:
        is_right = verified > 0 and abs(int(rate.rstrip("%")) - 100 * accepted / verified) <= 1
    return [] if is_right else [f"accept {rate} beside {validated} validated, {refuted} refuted"]


def reports(state: Path, known: dict[Path, int]) -> Iterator[str]:
    """New fault reports and logged exceptions below a folder.

    Args:
        state: The folder.
        known: The size of each file at the previous call; updated here.
    """
    for path in sorted(state.rglob("*")):
        if not path.is_file() or path.name.endswith(DRAFT_SUFFIX):
            continue
        size = path.stat().st_size
        if known.get(path) in (size, REPORTED):
            continue
        known[path] = size
        text = plain(path.read_bytes())
        start = 0 if path.parent.name == FAULTS else _traceback_at(text)
        if start is not None:
            known[path] = REPORTED
            yield f"{path.name}: {text[start:][:MAX_SHOWN]}"


def _traceback_at(text: str) -> int | None:
    match = TRACEBACK.search(text)
    return None if match is None else match.start()


def plain(data: bytes) -> str:
    """Output without escape sequences and empty lines."""
    lines = data.decode(errors="replace").split("\n")
    texts = ("".join(match["text"] or "" for match in SEQUENCE.finditer(line)) for line in lines)
    return "\n".join(text.rstrip() for text in texts if text.strip())


def exception_in(data: bytes) -> str | None:
    """The end of an output that holds an exception, or None."""
    if b"Traceback" not in data and b"xception" not in data and b"Fatal Python" not in data:
        return None
    text = plain(data)
    start = _traceback_at(text)
    return None if start is None else text[start:][-MAX_SHOWN:]
