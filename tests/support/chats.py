"""Fill a chat store through its public methods."""

from dataclasses import replace

from app.store.chats import ChatStore
from app.store.records import Chat, ChatTree, StoredMessage
from engine.requests import Role


def add_chat(store: ChatStore, chat: Chat | str = "") -> Chat:
    """Add a chat without messages, given whole or by its title."""
    chat = Chat(title=chat) if isinstance(chat, str) else chat
    return store.add_trees([ChatTree(chat, ())])[0]


def add_message(
    store: ChatStore, chat_id: int, parent_id: int | None, role: Role, content: str
) -> StoredMessage:
    """Add one message to a chat, as its head."""
    return add_stored(store, StoredMessage(0, chat_id, parent_id, role, content))


def add_stored(store: ChatStore, message: StoredMessage) -> StoredMessage:
    """Add one whole message to its chat, as its head."""
    return store.add_messages(store.chat(message.chat_id), (replace(message, id=0),))[1][0]
