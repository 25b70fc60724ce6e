import threading
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from app.store.chats import RECENT_REPLIES, ChatStore
from app.store.errors import ChatGoneError, StoreError
from app.store.records import Chat, ChatChanges, NewChat, NewMessage, UnsentText
from app.store.writer import FLUSH_S
from engine.configuration import SamplingSettings
from tests.app.store.conftest import ask, finish, flushed, new_chat, reply
from tests.support.waiting import wait_until


def test_a_chat_comes_back_as_it_was_made(store: ChatStore) -> None:
    made = store.create_chat(
        NewChat(
            title="Ünïcode 🙂",
            model_path=None,
            system_prompt="be brief",
            sampling=SamplingSettings(temperature=0.7, top_k=40),
        ),
    )
    assert store.chat(made.id) == made
    assert made.sampling == SamplingSettings(temperature=0.7, top_k=40)
    assert made.head_id is None


def test_a_message_comes_back_as_it_was_added(store: ChatStore) -> None:
    chat = new_chat(store)
    added = store.add_message(
        NewMessage(
            chat.id,
            parent_id=None,
            role="assistant",
            content="hello\x00 \x1b[31m",
            token_ids=(0, 262_143, 5),
            vocabulary_id="v1",
            model_name="m",
            seed=2**63 - 1,
        ),
    )
    assert store.message(added.id) == added
    assert added.token_ids == (0, 262_143, 5)
    assert added.finish_reason is None
    assert store.chat(chat.id).head_id == added.id


def test_the_chat_used_last_is_first_in_the_list(store: ChatStore) -> None:
    first, second = new_chat(store, "first"), new_chat(store, "second")
    assert [chat.id for chat in store.list_chats()] == [second.id, first.id]
    ask(store, first, None, "again")
    assert [chat.id for chat in store.list_chats()] == [first.id, second.id]
    assert [chat.id for chat in store.list_chats(limit=1)] == [first.id]


def test_renaming_a_chat_keeps_its_place_and_what_was_not_named(store: ChatStore) -> None:
    first, second = new_chat(store, "first"), new_chat(store, "second")
    renamed = store.update_chat(first.id, ChatChanges(title="new", title_locked=True))
    assert (renamed.title, renamed.title_locked) == ("new", True)
    assert (renamed.model_path, renamed.sampling) == (first.model_path, first.sampling)
    assert [chat.id for chat in store.list_chats()] == [second.id, first.id]


def test_a_regenerated_reply_is_a_variant_beside_the_first(store: ChatStore) -> None:
    chat = new_chat(store)
    question = ask(store, chat, None, "q")
    one, two = reply(store, chat, question, "one"), reply(store, chat, question, "two")
    assert [m.content for m in store.variants(one.id)] == ["one", "two"]
    assert [m.content for m in store.path_to(two.id)] == ["q", "two"]
    assert store.chat(chat.id).head_id == two.id
    store.set_head(chat.id, one.id)
    assert store.chat(chat.id).head_id == one.id


def test_variants_of_a_first_message_stay_within_their_chat(store: ChatStore) -> None:
    chat, other = new_chat(store), new_chat(store)
    first = ask(store, chat, None, "asked")
    edited = ask(store, chat, None, "asked better")
    ask(store, other, None, "elsewhere")
    assert [m.id for m in store.variants(edited.id)] == [first.id, edited.id]


def test_messages_of_another_role_are_no_variants(store: ChatStore) -> None:
    chat = new_chat(store)
    system = store.add_message(
        NewMessage(chat.id, parent_id=None, role="system", content="be brief")
    )
    question = ask(store, chat, None, "q")
    assert store.variants(question.id) == [store.message(question.id)]
    assert store.variants(system.id) == [system]


def test_the_leaf_is_the_newest_message_below(store: ChatStore) -> None:
    chat = new_chat(store)
    question = ask(store, chat, None, "q")
    one = reply(store, chat, question, "one")
    follow_up = ask(store, chat, one, "more")
    two = reply(store, chat, question, "two")
    assert store.leaf_of(question.id) == two.id
    assert store.leaf_of(one.id) == follow_up.id
    assert store.leaf_of(two.id) == two.id


def test_deleting_a_chat_takes_its_messages_however_deep_they_are(store: ChatStore) -> None:
    chat, kept = new_chat(store), new_chat(store, "kept")
    question = ask(store, kept, None, "stays")
    message = None
    for n in range(1200):
        message = ask(store, chat, message, str(n))
    assert message is not None
    assert len(store.path_to(message.id)) == 1200
    store.delete_chat(chat.id)
    assert [chat.id for chat in store.list_chats()] == [kept.id]
    with pytest.raises(StoreError, match="another kvchat may have deleted it"):
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


def test_other_writes_do_not_hold_a_partial_back(store: ChatStore, path: Path) -> None:
    chat = new_chat(store)
    answer = reply(store, chat, ask(store, chat, None, "q"))
    jobs, is_over = store._writer._jobs, threading.Event()

    def work() -> None:
        if not is_over.wait(0.01):
            jobs.put(work)  # there is always another one

    jobs.put(work)
    with ChatStore(path) as other:
        store.write_partial(answer.id, "in between", ())
        wait_until(lambda: other.message(answer.id).content == "in between")
    is_over.set()


def test_the_end_of_a_reply_wins_over_partials_that_are_still_waiting(store: ChatStore) -> None:
    chat = new_chat(store)
    answer = reply(store, chat, ask(store, chat, None, "q"))
    store.write_partial(answer.id, "partial", (1,))
    ended = finish(store, answer, "the whole reply")
    store.write_partial(answer.id, "late", (1,))
    flushed(store)
    assert store.message(answer.id) == ended
    assert ended.content == "the whole reply"
    assert ended.stats == {"n_emitted": 3}
    assert ended.finish_reason == "end"


def test_closing_writes_what_was_kept_back(path: Path) -> None:
    with ChatStore(path) as store:
        chat = new_chat(store)
        answer = reply(store, chat, ask(store, chat, None, "q"))
        store.write_partial(answer.id, "last words", ())
    with ChatStore(path) as store:
        assert store.message(answer.id).content == "last words"


def test_reads_work_on_every_thread(store: ChatStore) -> None:
    chat, seen = new_chat(store), []
    threads = [threading.Thread(target=lambda: seen.append(store.chat(chat.id))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [chat] * 4


def test_a_message_of_another_chat_is_refused_as_parent_and_as_head(store: ChatStore) -> None:
    chat, other = new_chat(store), new_chat(store)
    stranger = ask(store, other, None, "q")
    with pytest.raises(StoreError, match="is not one of chat"):
        ask(store, chat, stranger, "a")
    with pytest.raises(StoreError, match="is not one of chat"):
        store.set_head(chat.id, stranger.id)
    assert store.chat(chat.id).head_id is None


@pytest.mark.parametrize(
    "action",
    [
        lambda store: store.chat(99),
        lambda store: store.update_chat(99, ChatChanges(title="x")),
        lambda store: store.path_to(99),
        lambda store: store.variants(99),
        lambda store: store.leaf_of(99),
        lambda store: store.set_head(99, None),
        lambda store: store.add_message(NewMessage(99, parent_id=None, role="user", content="")),
        lambda store: store.finish_message(
            replace(
                store.message(99),
                content="",
                token_ids=None,
                vocabulary_id=None,
                seed=None,
                finish_reason="end",
                stats=None,
            ),
        ),
    ],
)
def test_what_is_gone_is_said_to_be_gone(store: ChatStore, action) -> None:
    with pytest.raises(ChatGoneError, match="99 is not in the database"):
        action(store)


def test_a_closed_store_says_so(path: Path) -> None:
    store = ChatStore(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.list_chats()
    with pytest.raises(StoreError, match="closed"):
        new_chat(store)


def say(store: ChatStore, chat: Chat, vocabulary_id: str, tokens: tuple[int, ...]) -> None:
    store.finish_message(
        replace(
            store.message(reply(store, chat, ask(store, chat, None, "?")).id),
            content="",
            token_ids=tokens,
            vocabulary_id=vocabulary_id,
            seed=None,
            finish_reason="end",
            stats=None,
        ),
    )


def test_a_text_that_was_not_sent_is_kept_for_its_chat_and_goes_with_it(store: ChatStore) -> None:
    chat, other = new_chat(store), new_chat(store)
    texts = {chat.id: UnsentText("a", 7, "b"), other.id: UnsentText("c"), None: UnsentText("new")}
    store.save_drafts(texts)
    store.save_drafts(
        {other.id: UnsentText(), None: UnsentText("newer"), 999: UnsentText("of nobody")}
    )
    store.set_archived(other.id, archived=True)  # a write that is waited for comes behind them
    assert store.drafts() == {chat.id: UnsentText("a", 7, "b"), None: UnsentText("newer")}
    store.delete_chat(chat.id)
    assert store.drafts() == {None: UnsentText("newer")}


def test_each_open_kvchat_has_a_text_of_its_own_for_the_new_chat(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with ChatStore(path) as first, ChatStore(path) as second:
        assert first.drafts() == second.drafts() == {}
        first.save_drafts({None: UnsentText("of the first")})
        second.save_drafts({None: UnsentText("of the second")})
    with ChatStore(path) as store, ChatStore(path) as other, ChatStore(path) as third:
        assert store.drafts() == {None: UnsentText("of the first")}
        assert other.drafts() == {None: UnsentText("of the second")}
        assert third.drafts() == {}
        store.save_drafts({None: UnsentText()})
    with ChatStore(path) as store:
        assert store.drafts() == {None: UnsentText("of the second")}, "no text is left behind"


def test_threads_that_have_ended_leave_no_connection_open(store: ChatStore) -> None:
    for _ in range(5):
        thread = threading.Thread(target=store.list_chats)
        thread.start()
        thread.join()
    assert len(store._readers) == 1
    assert store.list_chats() == []


def test_speeds_of_chats_are_medians_of_the_newest_replies_by_model(store: ChatStore) -> None:
    chat = new_chat(store)
    kept = [("a", {"plain_step_s": 0.5})] + [("a", {"plain_step_s": 0.01})] * RECENT_REPLIES
    kept += [("b", {"plain_step_s": 0.1}), ("b", {"plain_step_s": None}), ("b", None)]
    kept += [("c", {"plain_step_s": bad}) for bad in (0, -1, "0.1", 1e9)]
    for model, stats in kept:
        question = ask(store, chat, None, "?")
        added = store.add_message(
            NewMessage(
                chat.id, parent_id=question.id, role="assistant", content="!", model_name=model
            )
        )
        store.finish_message(replace(added, finish_reason="end", stats=stats))
    found = store.model_speeds()
    assert {name: round(each.decode_tps) for name, each in found.items()} == {"a": 100, "b": 10}
    assert (found["a"].by, found["a"].n_replies, found["b"].n_replies) == ("chats", 20, 1)
