"""Reads Markdown that kvchat wrote: its comments say where chats and messages begin."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from app.history_files.errors import HistoryFileError, wrong_line
from app.history_files.fields import Fields, parse_object
from app.history_files.markdown import END, MARK, VERSION
from app.history_files.reading import check_version, read_chat, read_place, read_role, tree_of
from app.store.records import Chat, ChatTree, StoredMessage

ESCAPED_MARK = re.compile(rf"^\\(?=\\*{re.escape(MARK)})", re.MULTILINE)


@dataclass(slots=True)
class _Part:
    """A comment of kvchat and the lines behind it."""

    number: int
    mark: str
    lines: list[str] = field(default_factory=list)


def read_markdown(text: str) -> list[ChatTree]:
    """Read the chats of a file; each tree's ids are those of the file.

    Raises:
        HistoryFileError: If it is no Markdown of kvchat, or a comment of it was changed.
    """
    trees: list[ChatTree] = []
    chat: Chat | None = None
    messages: dict[int, StoredMessage] = {}
    number = 0
    for part in _parts(text):
        kind, _, values = part.mark.partition(" ")
        match kind:
            case "chat":
                if chat is not None:
                    trees.append(tree_of(chat, messages, number))
                chat, messages, number = _read_head(values, part.number), {}, part.number
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
        raise HistoryFileError(
            f"there is no line that begins with {MARK}chat: only Markdown that kvchat exported is "
            "read, so export as JSON lines there if you can"
        )
    return [*trees, tree_of(chat, messages, number)]


def _parts(text: str) -> Iterator[_Part]:
    """Give the comments with what follows each; what stands before the first is left out."""
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


def _read_head(text: str, line: int) -> Chat:
    head = Fields(parse_object(text, line), line)
    check_version(head, VERSION)
    return read_chat(head)


def _read_message(text: str, part: _Part, before: dict[int, StoredMessage]) -> StoredMessage:
    values = Fields(parse_object(text, part.number), part.number)
    place, parent_id = read_place(values, before)
    message = StoredMessage(
        id=place,
        chat_id=0,
        parent_id=parent_id,
        role=read_role(values),
        content=_content(part.lines),
        token_ids=None,
        vocabulary_id=None,
        model_name=values.text("model_name", optional=True),
        seed=None,
        finish_reason=values.text("finish_reason", optional=True),
        stats=None,
        created_at=values.number("created_at"),
    )
    values.end()
    return message


def _content(lines: list[str]) -> str:
    """Give the text of a message: without its heading, and the blank lines around it."""
    body = lines[1:] if lines and lines[0].startswith("## ") else lines
    text = "\n".join(body).removeprefix("\n").removesuffix("\n")
    return ESCAPED_MARK.sub("", text)
