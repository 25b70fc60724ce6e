"""Which chat is shown at the start."""

from typing import Literal

from app.chat.conversation import Conversation
from app.chat.entries import CUT_BY_CLOSE, CUT_BY_CRASH
from app.store.errors import StoreError
from app.store.records import Chat

ReopenRule = Literal["cut", "last", "never"]


def restore_last_chat(controller: Conversation, rule: ReopenRule) -> None:
    """Show the chat used last where the rule wants it and no other kvchat writes it.

    Args:
        controller: Shows an empty chat.
        rule: `cut` is only where kvchat ended before the reply did, `last` always.

    Raises:
        StoreError: If the chats cannot be read.
    """
    store = controller.history.store
    chat = next(iter(store.list_chats(limit=1)), None)
    if chat is None or rule == "never" or (rule == "cut" and not _was_cut(controller, chat)):
        return
    try:
        controller.open_chat(chat.id)
    except StoreError:
        # Another kvchat deleted it just now: the empty chat stays.
        return
    if controller.history.is_read_only:
        controller.new_chat()


def _was_cut(controller: Conversation, chat: Chat) -> bool:
    """Whether kvchat or its engine ended before the chat's last question was answered."""
    if chat.head_id is None:
        return False
    last = controller.history.message(chat.head_id)
    return last.role == "user" or last.finish_reason in (None, CUT_BY_CLOSE, CUT_BY_CRASH)
