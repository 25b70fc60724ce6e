from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from app.store.chats import RECENT_REPLIES, ChatStore
from app.store.errors import ChatGoneError, StoreError
from app.store.records import Chat, StoredMessage, UnsentText
from app.store.writer import FLUSH_S
from tests.app.store.conftest import ask, finish, new_chat, reply
from tests.support.chats import add_stored
from tests.support.waiting import wait_until


def test_the_chat_used_last_is_first_in_the_list(store: ChatStore) -> None:
    first, second = new_chat(store, "first"), new_chat(store, "second")
    assert [chat.id for chat in store.list_chats()] == [second.id, first.id]
    ask(store, first, None, "again")
    assert [chat.id for chat in store.list_chats()] == [first.id, second.id]
    assert [chat.id for chat in store.list_chats(limit=1)] == [first.id]


def test_renaming_a_chat_keeps_its_place_and_what_was_not_named(store: ChatStore) -> None:
    first, second = new_chat(store, "first"), new_chat(store, "second")
    renamed = store.update_chat(first.id, title="new", title_locked=True)
    assert (renamed.title, renamed.title_locked) == ("new", True)
    assert (renamed.model_path, renamed.sampling) == (first.model_path, first.sampling)
    assert [chat.id for chat in store.list_chats()] == [second.id, first.id]


def test_deleting_a_chat_takes_its_messages_however_deep_they_are(store: ChatStore) -> None:
    chat, other = new_chat(store), new_chat(store, "other")
    question = ask(store, other, None, "stays")
    message = None
    for n in range(1200):
        message = ask(store, chat, message, str(n))
    assert message is not None
    assert len(store.path_to(message.id)) == 1200
    store.delete_chat(chat.id)
    assert [chat.id for chat in store.list_chats()] == [other.id]
    with pytest.raises(StoreError, match="another kvchat process may have deleted it"):
        store.message(message.id)
    assert store.message(question.id).content == "stays"


def test_a_partial_reply_goes_to_disk_by_itself_soon(store: ChatStore, path: Path) -> None:
    assert FLUSH_S <= 0.25
    chat = new_chat(store)
    answer = reply(store, chat, ask(store, chat, None, "q"))
    with ChatStore(path) as other:
        store.write_partial(answer.id, "half of", (1, 2))
        wait_until(lambda: other.message(answer.id).content == "half of")
    assert store.message(answer.id).token_ids == (1, 2)
    assert store.message(answer.id).finish_reason is None


def test_a_steady_stream_of_partials_is_written_while_it_goes_on(store: ChatStore) -> None:
    chat = new_chat(store)
    answer = reply(store, chat, ask(store, chat, None, "q"))
    n_written = count(1)

    def is_written() -> bool:
        n = next(n_written)
        store.write_partial(answer.id, "x" * n, range(n))
        return bool(store.message(answer.id).content)

    wait_until(is_written)


def test_the_end_of_a_reply_wins_over_partials_that_are_still_waiting(store: ChatStore) -> None:
    chat = new_chat(store)
    answer = reply(store, chat, ask(store, chat, None, "q"))
    store.write_partial(answer.id, "partial", (1,))
    ended = finish(store, answer, "the whole reply")
    store.write_partial(answer.id, "late", (1,))
    store.flush()
    assert store.message(answer.id) == ended
    assert ended.content == "the whole reply"
    assert ended.stats == {"n_emitted": 3}
    assert ended.finish_reason == "end"


def test_closing_writes_all_pending_changes(path: Path) -> None:
    with ChatStore(path) as store:
        chat = new_chat(store)
        answer = reply(store, chat, ask(store, chat, None, "q"))
        store.write_partial(answer.id, "last words", ())
    with ChatStore(path) as store:
        assert store.message(answer.id).content == "last words"


def test_a_message_of_another_chat_is_refused_as_parent_and_as_head(store: ChatStore) -> None:
    chat, other = new_chat(store), new_chat(store)
    stranger = ask(store, other, None, "q")
    with pytest.raises(StoreError, match="does not belong to chat"):
        ask(store, chat, stranger, "a")
    with pytest.raises(StoreError, match="does not belong to chat"):
        store.update_chat(chat.id, head_id=stranger.id)
    assert store.chat(chat.id).head_id is None


@pytest.mark.parametrize(
    "action",
    [
        lambda store: store.chat(99),
        lambda store: store.update_chat(99, title="x"),
        lambda store: store.path_to(99),
        lambda store: store.leaf_of(99),
        lambda store: store.update_chat(99, head_id=None),
        lambda store: store.add_messages(Chat(id=99), [StoredMessage(0, 99, None, "user", "")]),
        lambda store: store.message(99),
        lambda store: store.reopen_message(99),
        lambda store: store.tree(99),
        lambda store: store.update_chat(99, archived_at=1.0),
        lambda store: store.update_chat(99, context_start=None),
        lambda store: store.show_message(99),
    ],
)
def test_missing_rows_are_reported_as_missing(store: ChatStore, action) -> None:
    with pytest.raises(ChatGoneError, match="99 no longer exists"):
        action(store)


def test_a_text_that_was_not_sent_is_saved_for_its_chat_and_goes_with_it(store: ChatStore) -> None:
    chat, other = new_chat(store), new_chat(store)
    texts = {chat.id: UnsentText("a", 7, "b"), other.id: UnsentText("c"), None: UnsentText("new")}
    store.save_unsent(texts)
    store.save_unsent(
        {other.id: UnsentText(), None: UnsentText("newer"), 999: UnsentText("of nobody")}
    )
    store.update_chat(other.id, archived_at=1.0)  # a write that is waited for comes after them
    assert store.unsent_texts() == {chat.id: UnsentText("a", 7, "b"), None: UnsentText("newer")}
    store.delete_chat(chat.id)
    assert store.unsent_texts() == {None: UnsentText("newer")}


def test_each_open_kvchat_has_a_text_of_its_own_for_the_new_chat(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with ChatStore(path) as first, ChatStore(path) as second:
        assert first.unsent_texts() == second.unsent_texts() == {}
        first.save_unsent({None: UnsentText("of the first")})
        second.save_unsent({None: UnsentText("of the second")})
    with ChatStore(path) as store, ChatStore(path) as other, ChatStore(path) as third:
        assert store.unsent_texts() == {None: UnsentText("of the first")}
        assert other.unsent_texts() == {None: UnsentText("of the second")}
        assert third.unsent_texts() == {}
        store.save_unsent({None: UnsentText()})
    with ChatStore(path) as store:
        assert store.unsent_texts() == {None: UnsentText("of the second")}, "no text is left"


def test_speeds_of_chats_are_medians_of_the_newest_replies_by_model(store: ChatStore) -> None:
    chat = new_chat(store)
    other = [("a", {"plain_step_s": 0.5})] + [("a", {"plain_step_s": 0.01})] * RECENT_REPLIES
    other += [("b", {"plain_step_s": 0.1}), ("b", {"plain_step_s": None}), ("b", None)]
    other += [("c", {"plain_step_s": bad}) for bad in (0, -1, "0.1", 1e9)]
    for model, stats in other:
        question = ask(store, chat, None, "?")
        new = StoredMessage(0, chat.id, question.id, "assistant", "!", model_name=model)
        added = add_stored(store, new)
        store.finish_message(replace(added, finish_reason="end", stats=stats))
    found = store.model_speeds()
    assert {name: round(each.decode_tps) for name, each in found.items()} == {"a": 100, "b": 10}
    assert (found["a"].by, found["a"].n_replies, found["b"].n_replies) == ("chats", 20, 1)


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
