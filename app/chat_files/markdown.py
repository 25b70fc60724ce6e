r"""Chats as Markdown: to be read by people, and its texts by kvchat again.

A comment before each chat and message, which Markdown does not show, says where it begins and what
it is. A line of a message that looks like such a comment gets a backslash before it. Token ids,
statistics and seeds are not in it: JSON lines keep those.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.chat_files.jsonl import (
    VERSION,
    ChatFileError,
    ChatLine,
    MessageLine,
    chat_values,
    check_version,
    message_values,
    parse_object,
    read_line,
    wrong_line,
)
from app.format import local_time
from app.store.records import ChatTree, StoredMessage
from engine.model.ollama import model_title

MARK = "<!-- kvchat:"
END = " -->"
LIKE_A_MARK = re.compile(rf"^(?=\\*{re.escape(MARK)})", re.MULTILINE)
ESCAPED_MARK = re.compile(rf"^\\(?=\\*{re.escape(MARK)})", re.MULTILINE)
TITLE_LENGTH = 60
SPEAKERS = {"system": "System", "user": "You", "assistant": "Assistant"}


def markdown_of(trees: Iterable[ChatTree], *, all_branches: bool = False) -> Iterator[str]:
    """Chats as Markdown, piece by piece: the branch that is shown, or every one."""
    for tree in trees:
        yield from _chat(tree, all_branches=all_branches)


def n_left_out(trees: Sequence[ChatTree]) -> int:
    """How many messages lie on other branches than the shown ones."""
    return sum(len(tree.messages) - len(_shown(tree)) for tree in trees)


def read_markdown(text: str) -> list[ChatTree]:
    """Read the chats of a file; each tree's ids are those of the file.

    Raises:
        ChatFileError: If it is no Markdown of kvchat, or a comment of it was changed.
    """
    trees: list[ChatTree] = []
    chat: ChatLine | None = None
    messages: dict[int, StoredMessage] = {}
    number = 0
    for part in _parts(text):
        kind, _, values = part.mark.partition(" ")
        match kind:
            case "chat":
                if chat is not None:
                    trees.append(chat.tree(messages, number))
                check_version(parse_object(values, part.number), part.number)
                chat, messages = read_line(ChatLine, values, part.number), {}
                number = part.number
            case "message":
                if chat is None:
                    raise wrong_line(part.number, "a message stands before any chat")
                message = _read_message(values, part, messages)
                messages[message.id] = message
            case "note":
                pass
            case _:
                raise wrong_line(
                    part.number, f"{kind!r} is unknown: a newer kvchat may have made it"
                )
    if chat is None:
        raise ChatFileError(
            f"there is no line that begins with {MARK}chat: only Markdown that kvchat exported is "
            "read, so export as JSON lines there if you can"
        )
    return [*trees, chat.tree(messages, number)]


def _chat(tree: ChatTree, *, all_branches: bool) -> Iterator[str]:
    shown = _shown(tree)
    branches = _branches(tree, shown) if all_branches else [shown]
    written = sorted(message.id for branch in branches for message in branch)
    ids = {message_id: key for key, message_id in enumerate(written, start=1)}
    yield _head(tree, ids)
    above = {message.id: message for message in tree.messages}
    for branch in branches:
        if branch is not shown:
            yield _note(above.get(branch[0].parent_id or 0))
        for message in branch:
            yield _message(message, ids)


def _shown(tree: ChatTree) -> list[StoredMessage]:
    by_id = {message.id: message for message in tree.messages}
    path: list[StoredMessage] = []
    message = by_id.get(tree.chat.head_id or 0)
    while message is not None:
        path.append(message)
        message = by_id.get(message.parent_id or 0)
    return path[::-1]


def _branches(tree: ChatTree, shown: list[StoredMessage]) -> list[list[StoredMessage]]:
    """The shown branch and each other one from where it parts, a parent before a child."""
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


def _head(tree: ChatTree, ids: dict[int, int]) -> str:
    chat = tree.chat
    mark = _mark("chat", {"version": VERSION} | chat_values(chat, ids))
    title = " ".join(chat.title.split()) or "Chat"
    begun = f"Begun {local_time(chat.created_at)}"
    model = f", {model_title(chat.model_path)}" if chat.model_path else ""
    system = f"\n{_quote(chat.system_prompt)}\n" if chat.system_prompt else ""
    return f"{mark}\n# {title}\n\n{begun}{model}\n{system}\n"


def _message(message: StoredMessage, ids: dict[int, int]) -> str:
    mark = _mark("message", message_values(message, ids))
    speaker = message.model_name if message.role == "assistant" else None
    heading = f"## {' '.join((speaker or SPEAKERS[message.role]).split())}"
    content = LIKE_A_MARK.sub(r"\\", message.content)
    return f"{mark}\n{heading}, {local_time(message.created_at)}\n\n{content}\n\n"


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


@dataclass(slots=True)
class _Part:
    """A comment of kvchat and the lines after it."""

    number: int
    mark: str
    lines: list[str] = field(default_factory=list)


def _parts(text: str) -> Iterator[_Part]:
    """The comments with what follows each; what comes before the first is left out."""
    part: _Part | None = None
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        if line.startswith(MARK):
            if part is not None:
                yield part
            trimmed = line.rstrip()
            if not trimmed.endswith(END):
                raise wrong_line(number, f"the comment does not end with {END.strip()}")
            part = _Part(number, trimmed.removeprefix(MARK).removesuffix(END))
        elif part is not None:
            part.lines.append(line)
    if part is not None:
        yield part


def _read_message(text: str, part: _Part, before: Mapping[int, StoredMessage]) -> StoredMessage:
    parse_object(text, part.number)
    line = read_line(MessageLine, text, part.number)
    line.check_position(before, part.number)
    return StoredMessage(
        id=line.id,
        chat_id=0,
        parent_id=line.parent,
        role=line.role,
        content=_content(part.lines),
        token_ids=None,
        vocabulary_id=None,
        model_name=line.model_name,
        seed=None,
        finish_reason=line.finish_reason,
        stats=None,
        created_at=line.created_at,
    )


def _content(lines: list[str]) -> str:
    """The text of a message, without its heading and the blank lines around it."""
    body = lines[1:] if lines and lines[0].startswith("## ") else lines
    text = "\n".join(body).removeprefix("\n").removesuffix("\n")
    return ESCAPED_MARK.sub("", text)
