"""Chats as lossless JSON lines: the whole tree, token ids with vocabulary, statistics, settings.

Ids count the messages of one chat from 1, a parent before its children, so the same chat gives the
same file wherever it is stored.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.store.records import Chat, ChatTree, StoredMessage
from engine.configuration import SamplingSettings
from engine.errors import EngineError
from engine.parsing import parse_json
from engine.requests import Role
from engine.validation import explain, explain_faults

VERSION = 1
MAX_FIELDS = 1_000
"""Fields of an object; kvchat writes fewer than fifty."""

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Seconds = Annotated[float, Field(ge=0, lt=253_402_128_000, allow_inf_nan=False)]
"""A time of the epoch, until the end of the year 9999: no milliseconds."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]

FORMAT = "kvchat-chats"


class ChatFileError(EngineError):
    """A file of chats cannot be read or written."""

    title = "The chat file cannot be used"


class JsonLine(BaseModel):
    """An object of a file; an unknown field is an error, so that none is lost."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


LineType = TypeVar("LineType", bound=JsonLine)


class ChatLine(JsonLine):
    """A chat; its head and first message of the context are ids of the file."""

    format: str
    version: Int64
    n_messages: Int64
    title: str
    title_locked: bool
    created_at: Seconds
    updated_at: Seconds
    archived_at: Seconds | None = None
    model_path: str | None = None
    system_prompt: str
    sampling: SamplingSettings
    summary: str | None = None
    head: Int64 | None = None
    context_start: Int64 | None = None
    folder: str = ""
    is_pinned: bool = False

    def tree(self, messages: Mapping[int, StoredMessage], line: int) -> ChatTree:
        """The chat with its messages; `ChatFileError` if its head is none of them."""
        for name, key in (("head", self.head), ("context_start", self.context_start)):
            if key is not None and key not in messages:
                raise wrong_line(line, f"{name} is {key}, but the chat has no message {key}")
        values = {name: getattr(self, name) for name in CHAT_FIELDS}
        chat = Chat(id=0, head_id=self.head, context_start=self.context_start, **values)
        return ChatTree(chat, tuple(messages[key] for key in sorted(messages)))


CHAT_FIELDS = tuple(
    name
    for name in ChatLine.model_fields
    if name not in ("format", "version", "n_messages", "head", "context_start")
)


class MessageLine(JsonLine):
    """A message; its parent is an id of the file."""

    id: Int64
    parent: Int64 | None = None
    role: Role
    created_at: Seconds
    model_name: str | None = None
    finish_reason: str | None = None
    content: str
    seed: Int64 | None = None
    predictor: str | None = None
    controller: str | None = None
    stats: dict[str, object] | None = None
    vocabulary_id: str | None = None
    token_ids: tuple[TokenId, ...] | None = Field(default=None, fail_fast=True)


MESSAGE_FIELDS = tuple(name for name in MessageLine.model_fields if name not in ("id", "parent"))


def wrong_line(number: int, fact: str) -> ChatFileError:
    """The error for one line of a file, counted from 1."""
    return ChatFileError(f"line {number}: {fact}")


def parse_object(text: str, line: int) -> dict[str, object]:
    """The fields of a JSON object; `ChatFileError` if the text is none."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise wrong_line(
            line, f"this is not a kvchat chat file, or the file is truncated ({error})"
        ) from error
    if not isinstance(value, dict):
        raise wrong_line(line, "a JSON object is expected")
    objects = (each for each in (value, *value.values()) if isinstance(each, dict))
    if any(len(each) > MAX_FIELDS for each in objects):
        # Each unknown field would be a fault of its own.
        raise wrong_line(line, f"an object has more than {MAX_FIELDS:,} fields")
    return value


def read_line(model: type[LineType], text: str, line: int) -> LineType:
    """Read a bounded object; `ChatFileError` names each missing, wrong or unknown field."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        unknown = "unknown key, possibly from a newer kvchat"
        raise wrong_line(line, explain_faults(explain(error, model, unknown=unknown))) from error


def _chat_line(tree: ChatTree, ids: Mapping[int, int]) -> str:
    chat = tree.chat
    usual = asdict(SamplingSettings())
    sampling = {
        name: value for name, value in asdict(chat.sampling).items() if value != usual[name]
    }
    values = {
        "format": FORMAT,
        "version": VERSION,
        "n_messages": len(tree.messages),
        **{name: getattr(chat, name) for name in CHAT_FIELDS},
        "head": ids.get(chat.head_id or 0),
        "context_start": ids.get(chat.context_start or 0),
        "sampling": sampling,
    }
    return _line(ChatLine, values)


def _message_line(message: StoredMessage, ids: Mapping[int, int]) -> str:
    values = {name: getattr(message, name) for name in MESSAGE_FIELDS}
    places = {"id": ids[message.id], "parent": ids.get(message.parent_id or 0)}
    return _line(MessageLine, values | places)


def _line(model: type[JsonLine], values: Mapping[str, object]) -> str:
    fields = model.model_fields
    written = {
        name: value
        for name, value in values.items()
        if fields[name].is_required() or value != fields[name].default
    }
    return json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n"


def jsonl_of(trees: Iterable[ChatTree]) -> Iterator[str]:
    r"""The lines of chats, each ended by `\n`."""
    for tree in trees:
        ids = {message.id: key for key, message in enumerate(tree.messages, start=1)}
        yield _chat_line(tree, ids)
        yield from (_message_line(message, ids) for message in tree.messages)


def read_jsonl(lines: Iterable[str]) -> Iterator[ChatTree]:
    """The chats of a file's lines, one at a time; ids are those of the file.

    Raises:
        ChatFileError: If a line is not what `jsonl_of` writes, or lines are missing.
    """
    filled = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    return (_read_chat(number, line, filled) for number, line in filled)


def _read_chat(number: int, text: str, following: Iterator[tuple[int, str]]) -> ChatTree:
    """Read the chat of a head line, and its messages from the lines that follow."""
    values = parse_object(text, number)
    if values.get("format") != FORMAT:
        raise wrong_line(number, f'the first line of a chat must contain "format":"{FORMAT}"')
    if (found := values.get("version")) not in (None, VERSION):
        raise wrong_line(
            number, f"the format version is {found}, but this kvchat reads {VERSION}: update kvchat"
        )
    head = read_line(ChatLine, text, number)
    messages: dict[int, StoredMessage] = {}
    for number_of_message, line in islice(following, max(0, head.n_messages)):
        message = _read_message(line, number_of_message, messages)
        messages[message.id] = message
    if len(messages) != head.n_messages:
        raise ChatFileError(
            f"the file is truncated: the chat that begins on line {number} should have "
            f"{head.n_messages} messages, but has only {len(messages)}"
        )
    return head.tree(messages, number)


def _read_message(text: str, number: int, before: Mapping[int, StoredMessage]) -> StoredMessage:
    parse_object(text, number)
    line = read_line(MessageLine, text, number)
    if line.id in before:
        raise wrong_line(number, f"message {line.id} appears twice")
    if line.parent is not None and line.parent not in before:
        raise wrong_line(number, f"the parent {line.parent} is not the id of an earlier message")
    values = line.model_dump(exclude={"id", "parent"})
    return StoredMessage(id=line.id, chat_id=0, parent_id=line.parent, **values)
