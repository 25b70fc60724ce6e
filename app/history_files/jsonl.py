"""Chats as JSON lines: a head line for each chat, then a line for each of its messages.

Nothing is lost: the whole tree, token ids with their vocabulary, statistics and settings. Ids count
the messages of one chat from 1, a parent before what hangs below it, so the same chat gives the
same file wherever it is stored.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice

from app.history_files.errors import HistoryFileError, wrong_line
from app.history_files.fields import Fields, parse_object
from app.history_files.reading import check_version, read_chat, read_place, read_role, tree_of
from app.store.records import ChatTree, StoredMessage

FORMAT = "kvchat-chats"
VERSION = 1


def jsonl_of(trees: Iterable[ChatTree]) -> Iterator[str]:
    r"""Give the lines of chats, each ended by `\n`."""
    for tree in trees:
        ids = {message.id: place for place, message in enumerate(tree.messages, start=1)}
        yield _line(_head(tree, ids))
        for message in tree.messages:
            yield _line(_spelled(message, ids))


def read_jsonl(text: str) -> list[ChatTree]:
    """Read the chats of a file; each tree's ids are those of the file.

    Raises:
        HistoryFileError: If a line is not what `jsonl_of` writes, or lines are missing.
    """
    lines = enumerate(text.split("\n"), start=1)
    filled = ((number, line) for number, line in lines if line.strip())
    trees = [_read_chat(number, line, filled) for number, line in filled]
    if not trees:
        raise HistoryFileError("the file is empty")
    return trees


def _line(values: dict[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"


def _head(tree: ChatTree, ids: dict[int, int]) -> dict[str, object]:
    chat = tree.chat
    return {
        "format": FORMAT,
        "version": VERSION,
        "n_messages": len(tree.messages),
        "title": chat.title,
        "title_locked": chat.title_locked,
        "created_at": chat.created_at,
        "updated_at": chat.updated_at,
        "archived_at": chat.archived_at,
        "model_path": chat.model_path,
        "system_prompt": chat.system_prompt,
        "sampling": asdict(chat.sampling),
        "summary": chat.summary,
        "head": None if chat.head_id is None else ids[chat.head_id],
        "kept_from": None if chat.kept_from is None else ids[chat.kept_from],
    }


def _spelled(message: StoredMessage, ids: dict[int, int]) -> dict[str, object]:
    return {
        "id": ids[message.id],
        "parent": None if message.parent_id is None else ids[message.parent_id],
        "role": message.role,
        "content": message.content,
        "created_at": message.created_at,
        "model_name": message.model_name,
        "seed": message.seed,
        "finish_reason": message.finish_reason,
        "predictor": message.predictor,
        "controller": message.controller,
        "stats": message.stats,
        "vocabulary_id": message.vocabulary_id,
        "token_ids": message.token_ids,
    }


def _read_chat(number: int, text: str, following: Iterator[tuple[int, str]]) -> ChatTree:
    """Read the chat of a head line, and its messages from the lines that follow."""
    head = Fields(parse_object(text, number), number)
    if head.text("format", optional=True) != FORMAT:
        raise wrong_line(number, f'a chat begins with a line that says "format":"{FORMAT}"')
    check_version(head, VERSION)
    n_messages = head.integer("n_messages")
    chat = read_chat(head)
    messages: dict[int, StoredMessage] = {}
    for number_of_message, line in islice(following, max(0, n_messages)):
        message = _read_message(
            Fields(parse_object(line, number_of_message), number_of_message), messages
        )
        messages[message.id] = message
    if len(messages) != n_messages:
        raise HistoryFileError(
            f"the chat that begins in line {number} has {n_messages} messages, and the file ends "
            f"after {len(messages)} of them: it is cut"
        )
    return tree_of(chat, messages, number)


def _read_message(values: Fields, before: dict[int, StoredMessage]) -> StoredMessage:
    place, parent_id = read_place(values, before)
    message = StoredMessage(
        id=place,
        chat_id=0,
        parent_id=parent_id,
        role=read_role(values),
        content=values.text("content"),
        token_ids=values.token_ids("token_ids"),
        vocabulary_id=values.text("vocabulary_id", optional=True),
        model_name=values.text("model_name", optional=True),
        seed=values.integer("seed", optional=True),
        finish_reason=values.text("finish_reason", optional=True),
        stats=values.values("stats", optional=True),
        created_at=values.number("created_at"),
        predictor=values.text("predictor", optional=True),
        controller=values.text("controller", optional=True),
    )
    values.end()
    return message
