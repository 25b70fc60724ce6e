"""Archive, shortened context, branches and whole chats."""

from dataclasses import replace

import pytest

from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat, ChatTree, StoredMessage
from tests.app.store.conftest import ask, finish, new_chat, reply


def dialogue(store: ChatStore) -> tuple[Chat, list[StoredMessage]]:
    """Give a chat of a question with two answers, the first one gone on from."""
    chat = new_chat(store, "t")
    question = ask(store, chat, None, "q")
    first = finish(store, reply(store, chat, question), "one")
    follow = ask(store, chat, first, "more")
    second = finish(store, reply(store, chat, question), "two")
    return store.chat(chat.id), [question, first, follow, second]


def shape(tree: ChatTree) -> list[tuple[str, str | None]]:
    """Give each message's text and that of its parent."""
    contents = {message.id: message.content for message in tree.messages}
    return [(m.content, contents.get(m.parent_id or 0)) for m in tree.messages]


def test_a_deleted_chat_can_be_added_again_from_what_was_read_of_it(store: ChatStore) -> None:
    chat, _ = dialogue(store)
    before = store.tree(chat.id)
    store.delete_chat(chat.id)
    assert store.list_chats() == []
    store.delete_chat(chat.id)
    (again,) = store.add_trees([before])
    assert again.id != chat.id
    assert shape(store.tree(again.id)) == shape(before)
    assert again.updated_at == chat.updated_at


def test_of_several_trees_all_are_added_or_none(store: ChatStore) -> None:
    chat, _ = dialogue(store)
    tree = store.tree(chat.id)
    orphan = ChatTree(chat, tree.messages[1:])
    headless = ChatTree(replace(chat, head_id=999), tree.messages)
    for bad in (orphan, headless):
        with pytest.raises(StoreError, match="does not belong to the chat"):
            store.add_trees([tree, bad])
    assert len(store.list_chats()) == 1
    assert len(store.search("one")) == 1


def test_a_fork_is_distinguished_from_its_chat_by_its_title(store: ChatStore) -> None:
    chat, path = dialogue(store)
    fork = store.fork_chat(path[1].id)
    assert fork.head_id is not None
    again = store.fork_chat(fork.head_id)
    assert fork.title == again.title == f"(fork) {chat.title}"
    assert store.chat(chat.id).title == chat.title


def test_the_variants_of_one_message_are_those_of_the_whole_chat(store: ChatStore) -> None:
    chat, messages = dialogue(store)
    whole = store.variant_ids(chat.id)
    for message in messages:
        found = store.variant_ids(chat.id, message)
        assert found == {key: whole[key] for key in whole[message.id]}
