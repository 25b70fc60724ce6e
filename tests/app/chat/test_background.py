import pytest

from app.chat.conversation import Conversation
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import StoredMessage
from engine.events import Failed, FinishReason
from tests.app.chat.conftest import Clock, Start
from tests.support.fakes_client import Script, ScriptedClient

WORDS = "word " * 50


def left(start: Start) -> tuple[Conversation, ScriptedClient, int]:
    """A new chat, shown while the one before is being answered."""
    conversation, client = start(Script(replies=(WORDS,), tps=10))
    conversation.send("go")
    start.clock.now += 1
    conversation.poll()
    chat = conversation.history.chat
    assert chat is not None
    conversation.new_chat()
    conversation.poll()
    return conversation, client, chat.id


def pass_time(conversation: Conversation, clock: Clock, seconds: float) -> str:
    text = ""
    for _ in range(int(seconds * 10)):
        clock.now += 0.1
        text += conversation.poll().text
    return text


def test_a_reply_continues_in_its_own_chat_while_another_is_shown(start: Start) -> None:
    conversation, client, chat_id = left(start)
    assert client.n_stops == 0
    assert pass_time(conversation, start.clock, 3.0) == "", (
        "its text stays out of the chat that is shown"
    )
    assert conversation.entries() == []
    assert conversation.background_title == "go"
    assert conversation.snapshot().background_title == "go"
    assert not conversation.can_ask
    start.clock.now += 30
    change = conversation.poll()
    assert "“go” is answered" in change.notices[-1].message
    assert conversation.background_title is None
    assert conversation.can_ask
    conversation.open_chat(chat_id)
    [_, reply] = conversation.entries()
    assert reply.content == WORDS
    assert conversation.history.message(reply.key).finish_reason == FinishReason.END


def test_a_failure_in_another_chat_is_saved_there(
    start: Start,
) -> None:
    conversation, client = start(Script(replies=(WORDS,), tps=10, prefill_s=5.0))
    conversation.send("go")
    chat = conversation.history.chat
    assert chat is not None
    conversation.new_chat()
    conversation.poll()
    client.emit(Failed("The context is full", "too long"))
    change = conversation.poll()
    assert change.returned_text is None
    assert [notice.title for notice in change.notices] == ["The context is full: go"]
    assert conversation.entries() == []
    conversation.open_chat(chat.id)
    [question, reply] = conversation.entries()
    assert question.content == "go"
    assert conversation.history.message(reply.key).finish_reason == FinishReason.CONTEXT
    assert "{composer-send} shows ways" in reply.ending


def test_a_chat_stays_on_the_branch_of_its_running_reply(start: Start) -> None:
    conversation, _, chat_id = left(start)
    pass_time(conversation, start.clock, 30.0)
    conversation.open_chat(chat_id)
    first = conversation.entries()[-1].key
    assert conversation.regenerate()
    pass_time(conversation, start.clock, 0.5)
    assert not conversation.show_message(first)
    assert conversation.entries()[-1].is_live
    pass_time(conversation, start.clock, 30.0)
    assert conversation.show_message(first)
    assert conversation.entries()[-1].key == first


def test_a_bug_at_the_end_of_a_reply_loses_no_text(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = start(Script(replies=("alpha " * 9,)))

    def broken(message: StoredMessage) -> None:
        raise RuntimeError("a fault of kvchat itself")

    monkeypatch.setattr(conversation.history.store, "finish_message", broken)
    conversation.send("one")
    with pytest.raises(RuntimeError):
        conversation.poll()
    assert not conversation.is_replying
    assert conversation.can_ask
    assert conversation.entries()[-1].content == "alpha " * 9
    monkeypatch.undo()
    conversation.close()
    conversation.history.store.close()
    with ChatStore(start.path / "chats.db") as store:
        [chat] = store.list_chats()
        assert chat.head_id is not None
        assert store.path_to(chat.head_id)[-1].content == "alpha " * 9


def test_a_reply_is_saved_once_a_full_disk_has_space(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = start(Script(replies=("alpha " * 9,)))

    def full(message: StoredMessage) -> None:
        raise StoreError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(conversation.history.store, "finish_message", full)
        conversation.send("one")
        assert any("no space" in each.message for each in conversation.poll().notices)
    start.clock.now += 3
    conversation.poll()
    with ChatStore(start.path / "chats.db") as store:
        [chat] = store.list_chats()
        assert chat.head_id is not None
        found = store.path_to(chat.head_id)[-1]
        assert (found.content, found.finish_reason) == ("alpha " * 9, FinishReason.END)
