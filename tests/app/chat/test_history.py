from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.chat.history import ChatHistory
from app.store.chats import ChatStore
from app.store.records import StoredMessage
from engine.configuration import SamplingSettings
from tests.app.chat.test_conversation import Clock, loaded
from tests.support.fakes_client import Script

WARM = SamplingSettings(temperature=0.9)


def test_what_is_shown_after_each_step_of_a_chat_is_what_the_database_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    controller, _ = loaded(tmp_path, clock, Script(replies=("word " * 30,), tps=10))
    history = controller.history
    steps: tuple[Callable[[], object], ...] = (
        lambda: controller.send("first"),
        lambda: controller.send("second"),
        controller.regenerate,
        lambda: controller.switch_variant(history.visible()[-1].id, -1),
        lambda: controller.edit(history.visible()[0].id, "other"),
        lambda: controller.send("third"),
    )
    for step in steps:
        step()
        assert_as_stored(controller)
        for _ in range(3):
            clock.now += 0.1
            controller.poll()
        controller.stop()
        with monkeypatch.context() as patch:
            patch.setattr(ChatStore, "path_to", refuse)  # a turn reads none of the chat again
            controller.poll()
        assert_as_stored(controller)
    controller.poll()
    assert controller.continue_reply()
    assert_as_stored(controller)


def refuse(_store: ChatStore, message_id: int) -> list[StoredMessage]:
    raise AssertionError(f"the path to {message_id} was read")


def assert_as_stored(controller: Conversation) -> None:
    fresh = ChatHistory(controller.history.store, sampling=WARM, system_prompt="")
    assert controller.history.chat is not None
    fresh.chat = controller.history.chat
    fresh.refresh()
    assert controller.history.visible() == fresh.visible()
    assert controller.history.chat == fresh.chat
    live_id = controller.history.head_id if controller.is_replying else None
    shown = controller.history.entries(live_id=live_id)
    assert shown == fresh.entries(live_id=live_id)


def test_a_remark_stands_behind_its_message_until_it_is_made_again(tmp_path: Path) -> None:
    with ChatStore(tmp_path / "chats.db") as store:
        history = ChatHistory(store, sampling=SamplingSettings(), system_prompt="")
        reply = history.add_turn("one", parent_id=None, model_name=None, vocabulary_id=None)
        history.replace_message(replace(reply, content="two"))
        first, second = reply.parent_id, reply.id
        assert first is not None
        history.notes.add(history.head_id, "hello")
        history.notes.toggle(first, "figures")
        history.notes.toggle(second, "figures")
        shown = [entry.content for entry in history.entries()]
        assert shown == ["one", "figures", "two", "hello", "figures"]
        assert len({entry.key for entry in history.entries()}) == 5
        history.notes.toggle(first, "figures")
        assert [entry.content for entry in history.entries()] == ["one", "two", "hello", "figures"]
        history.notes.add(history.head_id, "more")
        assert len({entry.key for entry in history.entries()}) == 5
