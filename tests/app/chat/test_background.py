from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import StoredMessage
from engine.events import Failed, FinishReason
from tests.app.chat.conftest import Clock, loaded
from tests.support.fakes_client import Script, ScriptedClient

WORDS = "word " * 50


def left(tmp_path: Path, clock: Clock) -> tuple[Conversation, ScriptedClient, int]:
    """A new chat, shown while the one before is being answered."""
    controller, client = loaded(tmp_path, clock, Script(replies=(WORDS,), tps=10))
    controller.send("go")
    clock.now += 1
    controller.poll()
    chat = controller.history.chat
    assert chat is not None
    controller.new_chat()
    controller.poll()
    return controller, client, chat.id


def pass_time(controller: Conversation, clock: Clock, seconds: float) -> str:
    text = ""
    for _ in range(int(seconds * 10)):
        clock.now += 0.1
        text += controller.poll().text
    return text


def test_a_reply_goes_on_in_its_own_chat_while_another_is_shown(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client, chat_id = left(tmp_path, clock)
    assert client.n_stops == 0
    assert pass_time(controller, clock, 3.0) == "", "its text stays out of the chat that is shown"
    assert controller.entries() == []
    assert controller.background_title == "go"
    assert controller.snapshot().background_title == "go"
    assert not controller.can_ask
    clock.now += 30
    change = controller.poll()
    assert "“go” is answered" in change.notices[-1].message
    assert controller.background_title is None
    assert controller.can_ask
    controller.open_chat(chat_id)
    [_, reply] = controller.entries()
    assert reply.content == WORDS
    assert controller.history.message(reply.key).finish_reason == FinishReason.END


def test_a_failure_in_the_background_keeps_the_question_and_the_shown_chat_clean(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=(WORDS,), tps=10, prefill_s=5.0))
    controller.send("go")
    chat = controller.history.chat
    assert chat is not None
    controller.new_chat()
    controller.poll()
    client.emit(Failed("The context is full", "too long"))
    change = controller.poll()
    assert change.returned_text is None
    assert [notice.title for notice in change.notices] == ["The context is full: go"]
    assert controller.entries() == []
    controller.open_chat(chat.id)
    [question, reply] = controller.entries()
    assert question.content == "go"
    assert controller.history.message(reply.key).finish_reason == FinishReason.CONTEXT
    assert "{composer-send} shows ways" in reply.ending


def test_a_chat_stays_at_the_branch_that_a_reply_is_written_on(
    tmp_path: Path, clock: Clock
) -> None:
    controller, _, chat_id = left(tmp_path, clock)
    pass_time(controller, clock, 30.0)
    controller.open_chat(chat_id)
    first = controller.entries()[-1].key
    assert controller.regenerate()
    pass_time(controller, clock, 0.5)
    assert not controller.show_message(first)
    assert controller.entries()[-1].is_live
    pass_time(controller, clock, 30.0)
    assert controller.show_message(first)
    assert controller.entries()[-1].key == first


def test_a_reply_whose_end_cannot_be_handled_is_over_and_its_text_is_saved(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=("alpha " * 9,)))

    def broken(message: StoredMessage) -> None:
        raise RuntimeError("a fault of kvchat itself")

    monkeypatch.setattr(controller.history.store, "finish_message", broken)
    controller.send("one")
    with pytest.raises(RuntimeError):
        controller.poll()
    assert not controller.is_replying
    assert controller.can_ask
    assert controller.entries()[-1].content == "alpha " * 9
    monkeypatch.undo()
    controller.close()
    controller.history.store.close()
    with ChatStore(tmp_path / "chats.db") as store:
        [chat] = store.list_chats()
        assert chat.head_id is not None
        assert store.path_to(chat.head_id)[-1].content == "alpha " * 9


def test_a_reply_that_ends_on_a_full_disk_is_saved_once_there_is_space(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=("alpha " * 9,)))

    def full(message: StoredMessage) -> None:
        raise StoreError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(controller.history.store, "finish_message", full)
        controller.send("one")
        assert any("no space" in each.message for each in controller.poll().notices)
    clock.now += 3
    controller.poll()
    with ChatStore(tmp_path / "chats.db") as store:
        [chat] = store.list_chats()
        assert chat.head_id is not None
        found = store.path_to(chat.head_id)[-1]
        assert (found.content, found.finish_reason) == ("alpha " * 9, FinishReason.END)
