from collections.abc import Callable

from app.chat.conversation import Conversation
from app.chat.history import ChatHistory
from engine.configuration import SamplingSettings
from tests.app.chat.conftest import Start
from tests.support.fakes_client import Script

WARM = SamplingSettings(temperature=0.9)


def test_after_each_step_the_shown_chat_equals_the_stored_one(start: Start) -> None:
    conversation, _ = start(Script(replies=("word " * 30,), tps=10))
    history = conversation.history
    steps: tuple[Callable[[], object], ...] = (
        lambda: conversation.send("first"),
        lambda: conversation.send("second"),
        conversation.regenerate,
        lambda: conversation.switch_variant(history.visible()[-1].id, -1),
        lambda: conversation.edit(history.visible()[0].id, "other"),
        lambda: conversation.send("third"),
    )
    for step in steps:
        step()
        assert_as_stored(conversation)
        for _ in range(3):
            start.clock.now += 0.1
            conversation.poll()
        conversation.stop()
        conversation.poll()
        assert_as_stored(conversation)
    conversation.poll()
    assert conversation.continue_reply()
    assert_as_stored(conversation)


def assert_as_stored(conversation: Conversation) -> None:
    fresh = ChatHistory(conversation.history.store, sampling=WARM, system_prompt="")
    assert conversation.history.chat is not None
    fresh.chat = conversation.history.chat
    fresh.refresh()
    assert conversation.history.visible() == fresh.visible()
    assert conversation.history.chat == fresh.chat
    live_id = conversation.history.head_id if conversation.is_replying else None
    shown = conversation.history.entries(live_id=live_id)
    assert shown == fresh.entries(live_id=live_id)
