"""What is stored of chats and replies, and how it is packed."""

import json
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial

from engine.configuration import SamplingSettings
from engine.events import GenerationStats, PositionCounts, SourceCounts
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


COUNTS = (
    "n_prompt", "n_reused", "n_rounds", "n_drafted", "n_verified", "n_examined", "n_accepted",
    "n_emitted",
)  # fmt: skip
"""What every kvchat kept."""
TIMES = (
    "prefill_s", "first_token_s", "decode_s", "decode_tps", "plain_step_s", "plain_spread",
    "saved_s", "saved_error_s", "tokens_per_round", "speedup",
)  # fmt: skip
OF_SOURCE = tuple(field.name for field in fields(SourceCounts))
OF_POSITION = tuple(field.name for field in fields(PositionCounts))


def stats_of(message: StoredMessage) -> GenerationStats | None:
    """Give what was measured of a reply, None where nothing was kept.

    An older kvchat kept fewer figures: a figure that it did not keep is as one never measured, and
    no count is made up. None too where the counts themselves are missing.
    """
    kept = message.stats
    if kept is None or any(_count(kept.get(name)) is None for name in COUNTS):
        return None
    counts = {name: _count(kept[name]) or 0 for name in COUNTS}
    times = {name: _number(kept.get(name)) for name in TIMES}
    return GenerationStats(
        n_prompt=counts["n_prompt"],
        n_reused=counts["n_reused"],
        n_rounds=counts["n_rounds"],
        n_drafted=counts["n_drafted"],
        n_verified=counts["n_verified"],
        n_examined=counts["n_examined"],
        n_accepted=counts["n_accepted"],
        n_emitted=counts["n_emitted"],
        by_source=_sources(kept.get("by_source")),
        by_position=_positions(kept.get("by_position")),
        n_near_ties=_count(kept.get("n_near_ties")) or 0,
        n_redecoded=_count(kept.get("n_redecoded")) or 0,
        prefill_s=times["prefill_s"] or 0.0,
        first_token_s=times["first_token_s"],
        decode_s=times["decode_s"] or 0.0,
        decode_tps=times["decode_tps"],
        plain_step_s=times["plain_step_s"],
        plain_spread=times["plain_spread"],
        saved_s=times["saved_s"],
        saved_error_s=times["saved_error_s"],
        tokens_per_round=times["tokens_per_round"],
        speedup=times["speedup"],
        predictor=message.predictor,
        controller=message.controller,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _sources(kept: object) -> dict[str, SourceCounts]:
    if not isinstance(kept, Mapping):
        return {}
    counts = {str(name): _named(each, OF_SOURCE) for name, each in kept.items()}
    return {name: SourceCounts(**each) for name, each in counts.items() if each}


def _positions(kept: object) -> tuple[PositionCounts, ...]:
    if not isinstance(kept, list | tuple):
        return ()
    return tuple(PositionCounts(**_named(each, OF_POSITION)) for each in kept)


def _named(kept: object, names: tuple[str, ...]) -> dict[str, int]:
    if not isinstance(kept, Mapping):
        return {}
    found = {name: _count(kept.get(name)) for name in names}
    return {name: value for name, value in found.items() if value is not None}
