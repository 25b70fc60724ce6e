"""Chats that are answered at the same time, one in each slot of the context."""

from dataclasses import replace
from pathlib import Path

from app.chat.conversation import Conversation
from engine.events import FinishReason
from tests.app.chat.conftest import Clock
from tests.support.fakes_app import make_controller
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient

FIRST, SECOND = "alpha " * 40, "beta " * 40


def both_answered(tmp_path: Path, clock: Clock) -> tuple[Conversation, ScriptedClient, list[int]]:
    """Two chats under way, the second one shown."""
    script = Script(replies=(FIRST, SECOND), tps=10)
    controller, client = make_controller(tmp_path, script, clock=clock)
    controller.load(replace(CONFIGURATION, n_slots=2))
    controller.poll()
    chats: list[int] = []
    for question in ("one", "two"):
        controller.new_chat()
        assert controller.can_ask
        controller.send(question)
        assert controller.history.chat is not None
        chats.append(controller.history.chat.id)
    return controller, client, chats


def test_a_second_chat_is_answered_while_the_first_still_is(tmp_path: Path, clock: Clock) -> None:
    controller, _, [first, _] = both_answered(tmp_path, clock)
    clock.now += 1
    text = controller.poll().text + controller.entries()[-1].content
    assert "beta" in text
    assert "alpha" not in text
    snapshot = controller.snapshot()
    assert (snapshot.n_beside, snapshot.background_title) == (1, None)
    clock.now += 60
    assert "“one” is answered" in controller.poll().notices[-1].message
    assert controller.entries()[-1].content == SECOND
    controller.open_chat(first)
    assert controller.entries()[-1].content == FIRST


def test_stopping_ends_the_reply_of_the_shown_chat_alone(tmp_path: Path, clock: Clock) -> None:
    controller, _, [first, second] = both_answered(tmp_path, clock)
    clock.now += 1
    controller.poll()
    assert controller.stop()
    controller.poll()
    assert controller.reply_in(second) is None
    assert controller.reply_in(first) is not None
    reply = controller.history.message(controller.entries()[-1].key)
    assert reply.finish_reason == FinishReason.CANCELLED
    assert controller.background_title == "one"


def test_another_model_cuts_every_reply(tmp_path: Path, clock: Clock) -> None:
    controller, _, chats = both_answered(tmp_path, clock)
    clock.now += 1
    controller.poll()
    controller.load(replace(CONFIGURATION, n_slots=2))
    assert not controller.is_replying
    for chat_id in chats:
        controller.open_chat(chat_id)
        assert controller.entries()[-1].ending.startswith("stopped")
