"""What both formats say of a chat and its messages, read from checked fields."""

from collections.abc import Mapping
from dataclasses import fields

from app.history_files.errors import wrong_line
from app.history_files.fields import Fields
from app.store.records import Chat, ChatTree, StoredMessage
from engine.configuration import SamplingSettings
from engine.requests import Role

COUNTS = frozenset({"repetition_window", "top_k"})
"""The sampling settings that are whole numbers."""


def check_version(head: Fields, version: int) -> None:
    """Take the version of a format and make sure that this kvchat reads it."""
    found = head.integer("version")
    if found != version:
        raise wrong_line(
            head.line, f"the format has version {found}, this kvchat reads {version}: update kvchat"
        )


def read_chat(head: Fields) -> Chat:
    """Read a chat; its head and first kept message are those of the file."""
    chat = Chat(
        id=0,
        title=head.text("title"),
        title_locked=head.flag("title_locked"),
        created_at=head.number("created_at"),
        updated_at=head.number("updated_at"),
        archived_at=head.number("archived_at", optional=True),
        model_path=head.text("model_path", optional=True),
        system_prompt=head.text("system_prompt"),
        sampling=_read_sampling(head.fields("sampling")),
        summary=head.text("summary", optional=True),
        head_id=head.integer("head", optional=True),
        kept_from=head.integer("kept_from", optional=True),
    )
    head.end()
    return chat


def read_place(values: Fields, before: Mapping[int, StoredMessage]) -> tuple[int, int | None]:
    """Read a message's id and parent, which is one of those before it."""
    place, parent_id = values.integer("id"), values.integer("parent", optional=True)
    if place in before:
        raise wrong_line(values.line, f"message {place} is there twice")
    if parent_id is not None and parent_id not in before:
        raise wrong_line(values.line, f"the parent {parent_id} is no message before this one")
    return place, parent_id


def read_role(values: Fields) -> Role:
    """Read who speaks."""
    match values.text("role"):
        case "system" | "user" | "assistant" as role:
            return role
        case _:
            raise values.wrong("role", "one of system, user, assistant")


def tree_of(chat: Chat, messages: Mapping[int, StoredMessage], line: int) -> ChatTree:
    """Join a chat that line `line` begins with its messages, in the order of their ids."""
    for name, place in (("head", chat.head_id), ("kept_from", chat.kept_from)):
        if place is not None and place not in messages:
            raise wrong_line(line, f"{name!r} is {place}, which is no message of the chat")
    return ChatTree(chat, tuple(messages[place] for place in sorted(messages)))


def _read_sampling(values: Fields) -> SamplingSettings:
    read = {
        field.name: values.integer(field.name)
        if field.name in COUNTS
        else values.number(field.name)
        for field in fields(SamplingSettings)
        if field.name in values
    }
    values.end()
    return SamplingSettings(**read)  # type: ignore[arg-type]  # each by its field's kind
