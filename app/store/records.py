"""Chats and messages as they are stored, and how the columns of the database hold them."""

import json
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, partial
from typing import NamedTuple, TypedDict

from pydantic import TypeAdapter, ValidationError

from engine.configuration import SamplingSettings
from engine.events import GenerationStats
from engine.parsing import parse_json
from engine.requests import Role

Column = None | int | float | str | bytes
TEXT = partial(str, encoding="utf-8", errors="replace")
"""Decodes a text of the database; a character that a disk has damaged does not hide a message."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat; its messages are a tree, and `head_id` is the leaf that is shown."""

    id: int = 0
    """Id of the chat; 0 if it is not saved."""
    title: str = ""
    title_locked: bool = False
    """Whether the user chose the title, so that a question does not replace it."""
    created_at: float = 0.0
    """Seconds since the epoch."""
    updated_at: float = 0.0
    """When a message was last added or finished; seconds since the epoch."""
    model_path: str | None = None
    system_prompt: str = ""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    head_id: int | None = None
    archived_at: float | None = None
    """When the chat was archived, in seconds since the epoch; None if it was not."""
    context_start: int | None = None
    """First message that the model sees, if it is on the shown path; None for all."""
    summary: str | None = None
    """Summary that the model gets instead of the messages before `context_start`."""
    folder: str = ""
    """Folder of the chat; empty if it is in none."""
    is_pinned: bool = False
    """Whether the chat is pinned to the top of the lists."""


class ChatChanges(TypedDict, total=False):
    """Fields of a chat to change."""

    title: str
    title_locked: bool
    updated_at: float
    model_path: str | None
    system_prompt: str
    sampling: SamplingSettings
    head_id: int | None
    archived_at: float | None
    context_start: int | None
    summary: str | None
    folder: str
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message in the tree of its chat."""

    id: int
    """Id of the message; 0 if it is not saved."""
    chat_id: int
    parent_id: int | None
    role: Role
    content: str
    token_ids: tuple[int, ...] | None = None
    vocabulary_id: str | None = None
    """The vocabulary in which `token_ids` are valid."""
    model_name: str | None = None
    seed: int | None = None
    finish_reason: str | None = None
    """None for a reply that is being written, or that a crash interrupted."""
    stats: dict[str, object] | None = None
    """The engine's `GenerationStats` as plain values; an imported file may have others."""
    created_at: float = 0.0
    predictor: str | None = None
    """The predictor at the end of the reply; None if unknown."""
    controller: str | None = None


@dataclass(frozen=True, slots=True)
class ChatTree:
    """A chat with all of its messages, a parent before its children."""

    chat: Chat
    messages: tuple[StoredMessage, ...]


class ChatSize(NamedTuple):
    """Number of messages and tokens in all branches of a chat."""

    n_messages: int = 0
    n_tokens: int = 0
    """Saved token ids."""


@dataclass(frozen=True, slots=True)
class UnsentText:
    """A text of the user that was not sent."""

    text: str = ""
    edited: int | None = None
    """The question that it replaces."""
    before: str = ""
    """The composer's text before that question was edited."""

    def __bool__(self) -> bool:
        return bool(self.text or self.before) or self.edited is not None

    def and_then(self, later: "UnsentText") -> "UnsentText":
        """Both texts, one below the other."""
        return UnsentText(
            _joined(self.text, later.text),
            later.edited if self.edited is None else self.edited,
            _joined(self.before, later.before),
        )


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


CHAT_COLUMNS = ", ".join(each.name for each in fields(Chat))
MESSAGE_COLUMNS = ", ".join(each.name for each in fields(StoredMessage))


def chat_of(row: sqlite3.Row) -> Chat:
    """Read a row of `CHAT_COLUMNS`."""
    return Chat(
        **dict(row)
        | {
            "title_locked": bool(row["title_locked"]),
            "is_pinned": bool(row["is_pinned"]),
            "sampling": _sampling_of(row["sampling"]),
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
            return json.dumps(asdict(value))
        case dict():
            return json.dumps(value)
        case tuple() | list():
            return dump_tokens(value)
        case None | int() | float() | str():
            return value
    raise TypeError(f"a {type(value).__name__} cannot be stored in the chat database")


def _sampling_of(text: str) -> SamplingSettings:
    """Sampling settings of a column; a missing field has its default."""
    known = {field.name for field in fields(SamplingSettings)}
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (_object(text) or {}).items()
        if name in known
    }
    return SamplingSettings(**values)  # type: ignore[arg-type]  # as `packed` wrote them


def _object(text: str) -> dict[str, object] | None:
    """A JSON object of a column; None if a disk has damaged it."""
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


COUNTS = {"n_rounds", "n_drafted", "n_verified", "n_examined", "n_accepted"}
"""Counts without which statistics mean nothing."""
UNCOUNTED = {"n_prompt": None, "n_reused": None, "n_emitted": None}
"""Counts that a server may not report."""


def stats_of(message: StoredMessage) -> GenerationStats | None:
    """The statistics of a reply; None if they are missing or, in an imported file, not valid."""
    stats = message.stats
    if stats is None or not stats.keys() >= COUNTS:
        return None
    names = {"predictor": message.predictor, "controller": message.controller}
    try:
        return _stats_reader().validate_python(UNCOUNTED | stats | names)
    except ValidationError:
        return None


@cache
def _stats_reader() -> TypeAdapter[GenerationStats]:
    return TypeAdapter(GenerationStats)
