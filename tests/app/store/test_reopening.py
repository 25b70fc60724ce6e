from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.errors import StoreError
from tests.app.store.conftest import ask, finish, new_chat, reply
from tests.support.waiting import wait_until


def test_a_reply_that_goes_on_takes_partial_writes_again_and_ends_once_more(
    store: ChatStore, path: Path
) -> None:
    chat = new_chat(store)
    message = finish(store, reply(store, chat, ask(store, chat, None, "hi")), "one")
    store.reopen_message(message.id)
    reopened = store.message(message.id)
    assert (reopened.content, reopened.token_ids) == ("one", (1, 2, 3))
    assert reopened.finish_reason is None
    assert reopened.vocabulary_id == "v"
    store.write_partial(message.id, "one two", (1, 2, 3, 4))
    wait_until(lambda: store.message(message.id).content == "one two")
    assert finish(store, message, "one two three").finish_reason == "end"


def test_a_reply_that_is_gone_cannot_go_on(store: ChatStore) -> None:
    with pytest.raises(StoreError, match="message 99"):
        store.reopen_message(99)
