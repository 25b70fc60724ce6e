"""What is stored of chats and messages, what a caller asks to be stored, and how it is packed."""

import json
import sqlite3
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

from engine.configuration import SamplingSettings
from engine.events import GenerationStats, PositionCounts, SourceCounts
from engine.parsing import parse_json
from engine.requests import Role

Column = None | int | float | str | bytes
TEXT = partial(str, encoding="utf-8", errors="replace")
"""Reads a text of the database; one character that a disk has damaged hides no message."""


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat; its messages are a tree and `head_id` is the leaf that is shown."""

    id: int
    title: str
    title_locked: bool
    """The user named it, so no title is made for it any more."""
    created_at: float
    """Seconds since the epoch."""
    updated_at: float
    """When a message was last added or finished; seconds since the epoch."""
    model_path: str | None
    system_prompt: str
    sampling: SamplingSettings
    head_id: int | None
    archived_at: float | None = None
    """When the chat went into the archive, seconds since the epoch; None in the list."""
    kept_from: int | None = None
    """First message that the model still sees, where it lies on the shown path; None for all."""
    summary: str | None = None
    """What the model sees in place of the messages before `kept_from`."""
    folder: str = ""
    """The folder that it is in, empty for none."""
    is_pinned: bool = False
    """It stays at the top of the lists."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of the tree of its chat."""

    id: int
    chat_id: int
    parent_id: int | None
    role: Role
    content: str
    token_ids: tuple[int, ...] | None
    vocabulary_id: str | None
    """The vocabulary in which `token_ids` are valid."""
    model_name: str | None
    seed: int | None
    finish_reason: str | None
    """None on a reply that never finished: a crash cut it, or it is still being written."""
    stats: dict[str, object] | None
    """The engine's `GenerationStats` as plain values; an imported file may have fewer of them."""
    created_at: float
    predictor: str | None = None
    """Who drafted at the end of the reply; None where that is not known."""
    controller: str | None = None


@dataclass(frozen=True, slots=True)
class ChatTree:
    """A chat with all of its messages, a parent before its children."""

    chat: Chat
    messages: tuple[StoredMessage, ...]


@dataclass(frozen=True, slots=True)
class ChatSize:
    """How much a chat holds, over all of its branches."""

    n_messages: int = 0
    n_tokens: int = 0
    """Tokens of the messages whose token ids are kept."""


@dataclass(frozen=True, slots=True)
class UnsentText:
    """A text of the user that was not sent."""

    text: str = ""
    edited: int | None = None
    """The question that it replaces."""
    before: str = ""
    """The composer's text before that question was taken there."""

    def __bool__(self) -> bool:
        return bool(self.text or self.before) or self.edited is not None

    def and_then(self, later: "UnsentText") -> "UnsentText":
        """Both texts, one below the other; nothing that was written is lost."""
        return UnsentText(
            _joined(self.text, later.text),
            later.edited if self.edited is None else self.edited,
            _joined(self.before, later.before),
        )


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class NewChat:
    """A chat to begin."""

    title: str = ""
    model_path: str | None = None
    system_prompt: str = ""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)


@dataclass(frozen=True, slots=True)
class ChatChanges:
    """What to change of a chat; None leaves it."""

    title: str | None = None
    title_locked: bool | None = None
    system_prompt: str | None = None
    sampling: SamplingSettings | None = None
    model_path: str | None = None
    folder: str | None = None
    is_pinned: bool | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to add below `parent_id`; None begins a tree."""

    chat_id: int
    parent_id: int | None
    role: Role
    content: str
    token_ids: Sequence[int] | None = None
    vocabulary_id: str | None = None
    model_name: str | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A question to add with an empty reply."""

    chat: Chat | None
    """None begins one."""
    question: str | None
    """None adds a reply alone."""
    parent_id: int | None
    """The message above the question; of a reply alone, its question."""
    model_path: str | None
    """The model that the chat is used with."""
    model_name: str | None
    vocabulary_id: str | None
    """Known before the reply ends: one that a crash cuts can be continued only if it is."""
    title: str = ""
    system_prompt: str = ""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """These three are of a chat that is begun."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What was added for one turn."""

    chat: Chat
    messages: tuple[StoredMessage, ...]
    """The question, if it is new, and the reply."""


CHAT_COLUMNS = ", ".join(each.name for each in fields(Chat))
MESSAGE_COLUMNS = ", ".join(each.name for each in fields(StoredMessage))


def chat_of(row: sqlite3.Row) -> Chat:
    """Read a row of `CHAT_COLUMNS`."""
    return Chat(
        **dict(row)
        | {
            "title_locked": bool(row["title_locked"]),
            "is_pinned": bool(row["is_pinned"]),
            "sampling": load_sampling(row["sampling"]),
        }
    )


def message_of(row: sqlite3.Row) -> StoredMessage:
    """Read a row of `MESSAGE_COLUMNS`."""
    stats = row["stats"]
    return StoredMessage(
        **dict(row)
        | {
            "token_ids": load_tokens(row["token_ids"]),
            "stats": None if stats is None else _object(stats),
        }
    )


def packed(value: object) -> Column:
    """A field of a chat or message as its column holds it."""
    match value:
        case SamplingSettings():
            return dump_sampling(value)
        case dict():
            return json.dumps(value)
        case tuple() | list():
            return dump_tokens(value)
        case None | int() | float() | str():
            return value
    raise TypeError(f"no column holds a {type(value).__name__}")


def dump_sampling(sampling: SamplingSettings) -> str:
    """Sampling settings as a JSON object."""
    return json.dumps(asdict(sampling))


def load_sampling(text: str) -> SamplingSettings:
    """Read sampling settings; a field that the text lacks has its default."""
    known = {field.name for field in fields(SamplingSettings)}
    values = {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in (_object(text) or {}).items()
        if k in known
    }
    return SamplingSettings(**values)  # type: ignore[arg-type]  # as `dump_sampling` wrote them


def _object(text: str) -> dict[str, object] | None:
    """Read a JSON object; None where a disk has damaged it, which is to hide no message."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def dump_tokens(token_ids: Sequence[int] | None) -> bytes | None:
    """Pack token ids as little-endian 32-bit integers."""
    return None if token_ids is None else struct.pack(f"<{len(token_ids)}i", *token_ids)


def load_tokens(packed: bytes | None) -> tuple[int, ...] | None:
    """Unpack what `dump_tokens` packed."""
    return None if packed is None else struct.unpack(f"<{len(packed) // 4}i", packed)


COUNTS = ("n_rounds", "n_drafted", "n_verified", "n_examined", "n_accepted")
"""What every kvchat kept."""
UNCOUNTED = {"n_prompt": None, "n_reused": None, "n_emitted": None}
"""What a server may not count."""
LONGEST_STEP_S = 1000.0
"""A kept step is believed up to this."""


def stats_of(message: StoredMessage) -> GenerationStats | None:
    """What was measured of a reply; None where the counts were not kept.

    A figure that an imported file lacks counts as never measured.
    """
    kept, numbers = message.stats, _numbers(GenerationStats, message.stats)
    if kept is None or not numbers.keys() >= {*COUNTS}:
        return None
    return GenerationStats(
        **(UNCOUNTED | numbers),
        by_source=_sources(kept.get("by_source")),
        by_position=_positions(kept.get("by_position")),
        predictor=message.predictor,
        controller=message.controller,
    )


def plain_step_of(stats: str) -> float | None:
    """The seconds of a step without drafts in kept statistics; None where none was measured."""
    step_s = _number((_object(stats) or {}).get("plain_step_s"))
    return step_s if step_s is not None and 0 < step_s < LONGEST_STEP_S else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _sources(kept: object) -> dict[str, SourceCounts]:
    if not isinstance(kept, Mapping):
        return {}
    counts = {str(name): _numbers(SourceCounts, each) for name, each in kept.items()}
    return {name: SourceCounts(**each) for name, each in counts.items() if each}


def _positions(kept: object) -> tuple[PositionCounts, ...]:
    if not isinstance(kept, list | tuple):
        return ()
    return tuple(PositionCounts(**_numbers(PositionCounts, each)) for each in kept)


_Statistics = GenerationStats | SourceCounts | PositionCounts
_READ: dict[object, Callable[[object], float | None]] = {
    int: _count, int | None: _count, float: _number, float | None: _number,
}  # fmt: skip


def _numbers(kind: type[_Statistics], kept: object) -> dict[str, Any]:
    """The numbers of a dataclass that were kept; one of another type counts as not kept."""
    if not isinstance(kept, Mapping):
        return {}
    found = {
        each.name: _READ[each.type](kept.get(each.name))
        for each in fields(kind)
        if each.type in _READ
    }
    return {name: value for name, value in found.items() if value is not None}
