from collections.abc import Callable
from pathlib import Path

from app.chat.conversation import Conversation
from app.chat.history import ChatHistory
from engine.configuration import SamplingSettings
from tests.app.chat.conftest import Clock, loaded
from tests.support.fakes_client import Script

WARM = SamplingSettings(temperature=0.9)


def test_what_is_shown_after_each_step_of_a_chat_is_what_the_database_holds(
    tmp_path: Path, clock: Clock
) -> None:
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
        controller.poll()
        assert_as_stored(controller)
    controller.poll()
    assert controller.continue_reply()
    assert_as_stored(controller)


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
