"""Chats as JSON lines: a head line for each chat, then a line for each of its messages.

Nothing is lost: the whole tree, token ids with their vocabulary, statistics and settings. Ids count
the messages of one chat from 1, a parent before its children, so the same chat gives the same file
wherever it is stored.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from pydantic import Field

from app.chat_files.lines import (
    VERSION,
    ChatFileError,
    ChatLine,
    Int64,
    MessageLine,
    TokenId,
    chat_values,
    check_version,
    message_values,
    parse_object,
    read_line,
    wrong_line,
)
from app.store.records import ChatTree, StoredMessage

FORMAT = "kvchat-chats"
STORED = (
    "content", "seed", "predictor", "controller", "stats", "vocabulary_id", "token_ids",
)  # fmt: skip
"""Fields of a message that Markdown does not have."""


class _Head(ChatLine):
    format: str
    n_messages: Int64


class _Message(MessageLine):
    content: str
    seed: Int64 | None = None
    predictor: str | None = None
    controller: str | None = None
    stats: dict[str, object] | None = None
    vocabulary_id: str | None = None
    token_ids: tuple[TokenId, ...] | None = Field(default=None, fail_fast=True)


def jsonl_of(trees: Iterable[ChatTree]) -> Iterator[str]:
    r"""The lines of chats, each ended by `\n`."""
    for tree in trees:
        ids = {message.id: key for key, message in enumerate(tree.messages, start=1)}
        head = {"format": FORMAT, "version": VERSION, "n_messages": len(tree.messages)}
        yield _line(head | chat_values(tree.chat, ids))
        for message in tree.messages:
            stored = {name: getattr(message, name) for name in STORED}
            yield _line(message_values(message, ids) | stored)


def read_jsonl(text: str) -> list[ChatTree]:
    """Read the chats of a file; each tree's ids are those of the file.

    Raises:
        ChatFileError: If a line is not what `jsonl_of` writes, or lines are missing.
    """
    lines = enumerate(text.split("\n"), start=1)
    filled = ((number, line) for number, line in lines if line.strip())
    trees = [_read_chat(number, line, filled) for number, line in filled]
    if not trees:
        raise ChatFileError("the file is empty")
    return trees


def _line(values: Mapping[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"


def _read_chat(number: int, text: str, following: Iterator[tuple[int, str]]) -> ChatTree:
    """Read the chat of a head line, and its messages from the lines that follow."""
    values = parse_object(text, number)
    if values.get("format") != FORMAT:
        raise wrong_line(number, f'a chat begins with a line that says "format":"{FORMAT}"')
    check_version(values, number)
    head = read_line(_Head, text, number)
    messages: dict[int, StoredMessage] = {}
    for number_of_message, line in islice(following, max(0, head.n_messages)):
        message = _read_message(line, number_of_message, messages)
        messages[message.id] = message
    if len(messages) != head.n_messages:
        raise ChatFileError(
            f"the chat that begins in line {number} has {head.n_messages} messages, and the file "
            f"ends after {len(messages)} of them: it is cut"
        )
    return head.tree(messages, number)


def _read_message(text: str, number: int, before: Mapping[int, StoredMessage]) -> StoredMessage:
    parse_object(text, number)
    line = read_line(_Message, text, number)
    line.check_position(before, number)
    values = line.model_dump(exclude={"id", "parent"})
    return StoredMessage(id=line.id, chat_id=0, parent_id=line.parent, **values)
