"""Titles of chats, for lists that name chats by number."""

from pathlib import Path

from app.store.chats import ChatStore
from app.store.errors import StoreError

ALL = 1_000_000


def chat_titles(database: Path) -> tuple[dict[int, str], str | None]:
    """Give the titles by number, and what kept them from being read."""
    if not database.is_file():
        return {}, None
    try:
        with ChatStore(database) as store:
            return {chat.id: chat.title for chat in store.list_chats(ALL, archived=None)}, None
    except StoreError as error:
        return {}, f"chats are shown by number: {error}"
