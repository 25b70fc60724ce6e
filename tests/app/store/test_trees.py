"""Archive, kept context, branches and whole chats."""

from dataclasses import replace

import pytest

from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat, ChatSize, ChatTree, StoredMessage
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


def test_an_archived_chat_leaves_the_list_and_comes_back_to_its_place(store: ChatStore) -> None:
    first, second = new_chat(store, "first"), new_chat(store, "second")
    archived = store.set_archived(first.id, archived=True)
    assert archived.archived_at is not None
    assert store.set_archived(first.id, archived=True) == archived
    assert [chat.id for chat in store.list_chats()] == [second.id]
    assert store.list_chats(archived=True) == [archived]
    assert [chat.id for chat in store.list_chats(archived=None)] == [second.id, first.id]
    assert store.set_archived(first.id, archived=False) == first
    assert [chat.id for chat in store.list_chats()] == [second.id, first.id]


def test_sizes_count_messages_and_the_tokens_that_are_kept(store: ChatStore) -> None:
    chat, _ = dialogue(store)
    new_chat(store, "empty")
    assert store.sizes() == {chat.id: ChatSize(n_messages=4, n_tokens=6)}


def test_what_the_model_still_sees_is_kept_and_undone(store: ChatStore) -> None:
    chat, messages = dialogue(store)
    assert store.set_kept_from(chat.id, messages[2].id).kept_from == messages[2].id
    kept = store.set_kept_from(chat.id, messages[2].id, summary="asked, answered")
    assert (kept.kept_from, kept.summary) == (messages[2].id, "asked, answered")
    assert store.chat(chat.id) == kept
    assert store.set_kept_from(chat.id, None) == chat


def test_the_first_kept_message_is_one_of_the_chat(store: ChatStore) -> None:
    chat, _ = dialogue(store)
    stranger = ask(store, new_chat(store), None, "q")
    with pytest.raises(StoreError, match="is not one of chat"):
        store.set_kept_from(chat.id, stranger.id)


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
        with pytest.raises(StoreError, match="is not a message of the chat"):
            store.add_trees([tree, bad])
    assert len(store.list_chats()) == 1
    assert len(store.search("one")) == 1


@pytest.mark.parametrize(
    "action",
    [
        lambda store: store.tree(99),
        lambda store: store.set_archived(99, archived=True),
        lambda store: store.set_kept_from(99, None),
        lambda store: store.show_message(99),
    ],
)
def test_what_is_gone_is_said_to_be_gone(store: ChatStore, action) -> None:
    with pytest.raises(StoreError, match="99 is not in the database"):
        action(store)


def test_a_fork_is_told_from_its_chat_by_its_title(store: ChatStore) -> None:
    chat, path = dialogue(store)
    first = store.fork_chat(path[1].id)
    second = store.fork_chat(path[1].id)
    assert first.head_id is not None
    third = store.fork_chat(first.head_id)
    titles = [f"{chat.title} (fork{n})" for n in ("", " 2", " 3")]
    assert [each.title for each in (first, second, third)] == titles
    assert store.chat(chat.id).title == chat.title
