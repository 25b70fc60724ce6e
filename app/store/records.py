"""What the chat database holds, as frozen values, and how the columns spell them."""

import json
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial

from engine.configuration import SamplingSettings
from engine.parsing import parse_json
from engine.requests import Role

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
    """What stands for the model in place of the messages before `kept_from`."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message and where it hangs in the tree of its chat."""

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
    """The engine's `GenerationStats` as plain values; an older kvchat stored fewer of them."""
    created_at: float
    predictor: str | None = None
    """Who drafted at the end of the reply; None where that is not known."""
    controller: str | None = None


@dataclass(frozen=True, slots=True)
class ChatTree:
    """A chat with all of its messages, a parent before what hangs below it."""

    chat: Chat
    messages: tuple[StoredMessage, ...]


@dataclass(frozen=True, slots=True)
class ChatSize:
    """How much a chat holds, over all of its branches."""

    n_messages: int = 0
    n_tokens: int = 0
    """Tokens of the messages whose token ids are kept."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A text of the user that was not sent."""

    text: str = ""
    edited: int | None = None
    """The question that it takes the place of."""
    before: str = ""
    """What stood in the composer before that question was taken there."""

    def __bool__(self) -> bool:
        return bool(self.text or self.before) or self.edited is not None

    def and_then(self, later: "Draft") -> "Draft":
        """Both texts, one below the other; nothing that was written is lost."""
        return Draft(
            _joined(self.text, later.text),
            later.edited if self.edited is None else self.edited,
            _joined(self.before, later.before),
        )


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


CHAT_COLUMNS = (
    "id, title, title_locked, created_at, updated_at, model_path, system_prompt, sampling, head_id,"
    " archived_at, kept_from, summary"
)
MESSAGE_COLUMNS = (
    "id, chat_id, parent_id, role, content, token_ids, vocabulary_id, model_name, seed,"
    " finish_reason, stats, created_at, predictor, controller"
)


def chat_of(row: sqlite3.Row) -> Chat:
    """Read a row of `CHAT_COLUMNS`."""
    return Chat(
        id=row["id"],
        title=row["title"],
        title_locked=bool(row["title_locked"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        model_path=row["model_path"],
        system_prompt=row["system_prompt"],
        sampling=load_sampling(row["sampling"]),
        head_id=row["head_id"],
        archived_at=row["archived_at"],
        kept_from=row["kept_from"],
        summary=row["summary"],
    )


def message_of(row: sqlite3.Row) -> StoredMessage:
    """Read a row of `MESSAGE_COLUMNS`."""
    return StoredMessage(
        id=row["id"],
        chat_id=row["chat_id"],
        parent_id=row["parent_id"],
        role=row["role"],
        content=row["content"],
        token_ids=load_tokens(row["token_ids"]),
        vocabulary_id=row["vocabulary_id"],
        model_name=row["model_name"],
        seed=row["seed"],
        finish_reason=row["finish_reason"],
        stats=None if row["stats"] is None else _object(row["stats"]),
        created_at=row["created_at"],
        predictor=row["predictor"],
        controller=row["controller"],
    )


def dump_sampling(sampling: SamplingSettings) -> str:
    """Spell sampling settings as the column does: a JSON object."""
    return json.dumps(asdict(sampling))


def load_sampling(text: str) -> SamplingSettings:
    """Read sampling settings; a field that the text lacks has its default."""
    known = {field.name for field in fields(SamplingSettings)}
    values = {k: v for k, v in (_object(text) or {}).items() if k in known}
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
