"""Deletes a chat and the states that are kept on disk for it alone."""

from collections.abc import Iterator

from app import paths
from app.cache.cached_chats import owner_of
from app.format import counted, nbytes
from app.sanitize import one_line
from app.store.chats import ChatStore
from app.store.records import Chat
from engine.cache.snapshot_store import forget_owner
from engine.errors import CacheStoreError


def delete_chat(store: ChatStore, chat: Chat) -> Iterator[str]:
    """Delete a chat, and tell line by line what happened.

    Raises:
        StoreError: If another kvchat writes the chat, or the database cannot be written.
    """
    store.delete_chat(chat.id)
    yield f"chat {chat.id}, {one_line(chat.title)}, is deleted"
    folder = paths.snapshots_dir()
    if not folder.is_dir():
        return
    try:
        forgotten = forget_owner(folder, owner_of(chat.id))
    except CacheStoreError as error:
        yield f"its states on disk could not be removed: {error}. `kvchat cache clear` removes all"
        return
    if forgotten.n_states:
        yield f"with it {counted(forgotten.n_states, 'kept state')}, {nbytes(forgotten.file_bytes)}"
