r"""Chats as Markdown: to be read by people, and its texts by kvchat again.

A comment before each chat and message, which Markdown does not show, says where it begins and what
it is. A line of a message that looks like such a comment gets a backslash before it. Token ids,
statistics and seeds are not in it: JSON lines keep those.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime

from app.store.records import ChatTree, StoredMessage

VERSION = 1
MARK = "<!-- kvchat:"
END = " -->"
LIKE_A_MARK = re.compile(rf"^(?=\\*{re.escape(MARK)})", re.MULTILINE)
TITLE_LENGTH = 60
SPEAKERS = {"system": "System", "user": "You", "assistant": "Assistant"}


def markdown_of(trees: Iterable[ChatTree], *, all_branches: bool = False) -> Iterator[str]:
    """Give chats as Markdown, piece by piece: the branch that is shown, or every one."""
    for tree in trees:
        yield from _chat(tree, all_branches=all_branches)


def _chat(tree: ChatTree, *, all_branches: bool) -> Iterator[str]:
    shown = _shown(tree)
    branches = _branches(tree, shown) if all_branches else [shown]
    written = sorted(message.id for branch in branches for message in branch)
    places = {message_id: place for place, message_id in enumerate(written, start=1)}
    yield _head(tree, places)
    above = {message.id: message for message in tree.messages}
    for branch in branches:
        if branch is not shown:
            yield _note(above.get(branch[0].parent_id or 0))
        for message in branch:
            yield _message(message, places)


def _shown(tree: ChatTree) -> list[StoredMessage]:
    by_id = {message.id: message for message in tree.messages}
    path: list[StoredMessage] = []
    message = by_id.get(tree.chat.head_id or 0)
    while message is not None:
        path.append(message)
        message = by_id.get(message.parent_id or 0)
    return path[::-1]


def _branches(tree: ChatTree, shown: list[StoredMessage]) -> list[list[StoredMessage]]:
    """Give the shown branch and each other one from where it parts, a parent before a child."""
    seen = {message.id for message in shown}
    branches = [shown]
    last: dict[int, list[StoredMessage]] = {}
    for message in tree.messages:
        if message.id in seen:
            continue
        branch = last.pop(message.parent_id or 0, None)
        if branch is None:
            branch = []
            branches.append(branch)
        branch.append(message)
        last[message.id] = branch
    return branches


def _head(tree: ChatTree, places: dict[int, int]) -> str:
    chat = tree.chat
    mark = _mark(
        "chat",
        {
            "version": VERSION,
            "title": chat.title,
            "title_locked": chat.title_locked,
            "created_at": chat.created_at,
            "updated_at": chat.updated_at,
            "archived_at": chat.archived_at,
            "model_path": chat.model_path,
            "system_prompt": chat.system_prompt,
            "sampling": asdict(chat.sampling),
            "summary": chat.summary,
            "head": places.get(chat.head_id or 0),
            "kept_from": places.get(chat.kept_from or 0),
        },
    )
    title = " ".join(chat.title.split()) or "Chat"
    begun = f"Begun {_time(chat.created_at)}"
    model = f", {chat.model_path}" if chat.model_path else ""
    system = f"\n{_quote(chat.system_prompt)}\n" if chat.system_prompt else ""
    return f"{mark}\n# {title}\n\n{begun}{model}\n{system}\n"


def _message(message: StoredMessage, places: dict[int, int]) -> str:
    mark = _mark(
        "message",
        {
            "id": places[message.id],
            "parent": places.get(message.parent_id or 0),
            "role": message.role,
            "created_at": message.created_at,
            "model_name": message.model_name,
            "finish_reason": message.finish_reason,
        },
    )
    speaker = message.model_name if message.role == "assistant" else None
    heading = f"## {' '.join((speaker or SPEAKERS[message.role]).split())}"
    content = LIKE_A_MARK.sub(r"\\", message.content)
    return f"{mark}\n{heading}, {_time(message.created_at)}\n\n{content}\n\n"


def _note(parent: StoredMessage | None) -> str:
    if parent is None:
        told = "Another beginning"
    else:
        line = " ".join(parent.content.split())
        short = line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1]}…"
        told = f"Another branch after “{short}”"
    return f"{MARK}note{END}\n---\n\n*{told}*\n\n"


def _mark(kind: str, values: dict[str, object]) -> str:
    # A comment ends at the first `-->`, so no `>` may stand in it; JSON spells it as an escape.
    spelled = json.dumps(values, ensure_ascii=False).replace(">", "\\u003e")
    return f"{MARK}{kind} {spelled}{END}"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def n_left_out(trees: Sequence[ChatTree]) -> int:
    """Give how many messages lie on other branches than the shown ones."""
    return sum(len(tree.messages) - len(_shown(tree)) for tree in trees)
