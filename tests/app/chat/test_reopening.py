import pytest

from app.chat.conversation import Conversation
from tests.app.chat.conftest import Start
from tests.support.fakes_app import release_locks
from tests.support.fakes_client import CONFIGURATION, Script


def left(start: Start, *, how: str) -> None:
    """One chat of an earlier kvchat, whose reply was whole, stopped or under way."""
    tps = None if how == "whole" else 10
    conversation, _ = start(Script(replies=("word " * 50,), tps=tps))
    conversation.send("go")
    start.clock.now += 1
    conversation.poll()
    if how == "stopped":
        conversation.stop()
        conversation.poll()
    if how == "killed":
        release_locks(conversation)
    else:
        conversation.close()
    conversation.history.store.close()


def started(start: Start) -> Conversation:
    conversation, _ = start.without_model()
    return conversation


@pytest.mark.parametrize(
    ("how", "is_shown"),
    [("closed", True), ("killed", True), ("stopped", False), ("whole", False)],
)
def test_a_chat_whose_reply_was_cut_is_reopened(start: Start, how: str, is_shown: bool) -> None:
    left(start, how=how)
    conversation = started(start)
    conversation.restore_last_chat("cut")
    assert (conversation.history.chat is not None) == is_shown
    if is_shown:
        conversation.load(CONFIGURATION)
        conversation.poll()
        assert conversation.continue_reply()


@pytest.mark.parametrize(("rule", "is_shown"), [("last", True), ("never", False)])
def test_the_setting_reopens_always_or_never(start: Start, rule: str, is_shown: bool) -> None:
    left(start, how="whole" if rule == "last" else "closed")
    conversation = started(start)
    conversation.restore_last_chat(rule)  # type: ignore[arg-type]
    assert (conversation.history.chat is not None) == is_shown


def test_a_chat_in_use_is_not_reopened(start: Start) -> None:
    writing, _ = start(Script(replies=("word " * 50,), tps=10))
    writing.send("go")
    writing.poll()
    conversation = started(start)
    conversation.restore_last_chat("cut")
    assert conversation.history.chat is None


def test_without_chats_there_is_nothing_to_show(start: Start) -> None:
    conversation = started(start)
    conversation.restore_last_chat("last")
    assert conversation.history.chat is None
