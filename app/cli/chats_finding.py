"""Finds the chat that a person means by an id or a part of a title."""

import difflib
from collections.abc import Sequence

from app.sanitize import one_line
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat

ALL = 1_000_000
N_NAMED = 8
"""Chats that a message names at most."""


class NoSuchChatError(StoreError):
    """No chat, or more than one, is meant by what was typed."""

    title = "Which chat?"


def find_chat(store: ChatStore, text: str) -> Chat:
    """Give the chat with this id, this title or, when there is only one, this part of a title.

    Archived chats are found too; where a title occurs several times, all of them are named.

    Raises:
        NoSuchChatError: If none is meant, or more than one.
    """
    chats = store.list_chats(ALL, archived=None)
    wanted = text.strip().casefold()
    if by_id := [chat for chat in chats if str(chat.id) == wanted]:
        return by_id[0]
    titled = [chat for chat in chats if chat.title.strip().casefold() == wanted]
    found = titled or [chat for chat in chats if wanted and wanted in chat.title.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchChatError(
            f"{text!r} is part of {len(found)} titles; give the number of one:\n{_named(found)}"
        )
    raise NoSuchChatError(f"no chat has the number or title {text!r}{_near(wanted, chats)}")


def _named(chats: Sequence[Chat]) -> str:
    lines = [f"{chat.id:>6}  {one_line(chat.title)}" for chat in chats[:N_NAMED]]
    if len(chats) > N_NAMED:
        lines.append(f"        and {len(chats) - N_NAMED} more")
    return "\n".join(lines)


def _near(wanted: str, chats: Sequence[Chat]) -> str:
    by_title = {chat.title.casefold(): chat for chat in reversed(chats)}
    near = difflib.get_close_matches(wanted, by_title, n=N_NAMED, cutoff=0.5)
    if not near:
        return ": `kvchat chats list` shows them, with --archived those in the archive"
    return f"; near is\n{_named([by_title[title] for title in near])}"
