from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from tests.app.chat.conftest import Clock, loaded
from tests.support.fakes_app import make_controller, release_locks
from tests.support.fakes_client import CONFIGURATION, Script


def left(tmp_path: Path, clock: Clock, *, how: str) -> None:
    """One chat of an earlier kvchat, whose reply was whole, stopped or under way."""
    tps = None if how == "whole" else 10
    controller, _ = loaded(tmp_path, clock, Script(replies=("word " * 50,), tps=tps))
    controller.send("go")
    clock.now += 1
    controller.poll()
    if how == "stopped":
        controller.stop()
        controller.poll()
    if how == "killed":
        release_locks(controller)
    else:
        controller.close()
    controller.history.store.close()


def started(tmp_path: Path, clock: Clock) -> Conversation:
    controller, _ = make_controller(tmp_path, clock=clock)
    return controller


@pytest.mark.parametrize(
    ("how", "is_shown"),
    [("closed", True), ("killed", True), ("stopped", False), ("whole", False)],
)
def test_a_chat_is_shown_again_where_kvchat_ended_before_its_reply_did(
    tmp_path: Path, clock: Clock, how: str, is_shown: bool
) -> None:
    left(tmp_path, clock, how=how)
    controller = started(tmp_path, clock)
    controller.restore_last_chat("cut")
    assert (controller.history.chat is not None) == is_shown
    if is_shown:
        controller.load(CONFIGURATION)
        controller.poll()
        assert controller.continue_reply()


@pytest.mark.parametrize(("rule", "is_shown"), [("last", True), ("never", False)])
def test_the_setting_shows_the_last_chat_always_or_never(
    tmp_path: Path, clock: Clock, rule: str, is_shown: bool
) -> None:
    left(tmp_path, clock, how="whole" if rule == "last" else "closed")
    controller = started(tmp_path, clock)
    controller.restore_last_chat(rule)  # type: ignore[arg-type]
    assert (controller.history.chat is not None) == is_shown


def test_a_chat_that_another_kvchat_writes_is_left_to_it(tmp_path: Path, clock: Clock) -> None:
    writing, _ = loaded(tmp_path, clock, Script(replies=("word " * 50,), tps=10))
    writing.send("go")
    writing.poll()
    controller = started(tmp_path, clock)
    controller.restore_last_chat("cut")
    assert controller.history.chat is None


def test_without_chats_there_is_nothing_to_show(tmp_path: Path, clock: Clock) -> None:
    controller = started(tmp_path, clock)
    controller.restore_last_chat("last")
    assert controller.history.chat is None
