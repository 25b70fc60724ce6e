"""Chats that are answered at the same time, one in each slot of the context."""

from dataclasses import replace

from app.chat.conversation import Conversation
from engine.events import FinishReason
from tests.app.chat.conftest import Start
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient

FIRST, SECOND = "alpha " * 40, "beta " * 40


def both_answered(start: Start) -> tuple[Conversation, ScriptedClient, list[int]]:
    """Two chats under way, the second one shown."""
    script = Script(replies=(FIRST, SECOND), tps=10)
    conversation, client = start.without_model(script)
    conversation.load(replace(CONFIGURATION, n_slots=2))
    conversation.poll()
    chats: list[int] = []
    for question in ("one", "two"):
        conversation.new_chat()
        assert conversation.can_ask
        conversation.send(question)
        assert conversation.history.chat is not None
        chats.append(conversation.history.chat.id)
    return conversation, client, chats


def test_a_second_chat_is_answered_while_the_first_still_is(start: Start) -> None:
    conversation, _, [first, _] = both_answered(start)
    start.clock.now += 1
    text = conversation.poll().text + conversation.entries()[-1].content
    assert "beta" in text
    assert "alpha" not in text
    snapshot = conversation.snapshot()
    assert (snapshot.n_beside, snapshot.background_title) == (1, None)
    start.clock.now += 60
    assert "“one” is answered" in conversation.poll().notices[-1].message
    assert conversation.entries()[-1].content == SECOND
    conversation.open_chat(first)
    assert conversation.entries()[-1].content == FIRST


def test_stopping_ends_the_reply_of_the_shown_chat_alone(start: Start) -> None:
    conversation, _, [first, second] = both_answered(start)
    start.clock.now += 1
    conversation.poll()
    assert conversation.stop()
    conversation.poll()
    assert conversation.reply_in(second) is None
    assert conversation.reply_in(first) is not None
    reply = conversation.history.message(conversation.entries()[-1].key)
    assert reply.finish_reason == FinishReason.CANCELLED
    assert conversation.background_title == "one"


def test_another_model_cuts_every_reply(start: Start) -> None:
    conversation, _, chats = both_answered(start)
    start.clock.now += 1
    conversation.poll()
    conversation.load(replace(CONFIGURATION, n_slots=2))
    assert not conversation.is_replying
    for chat_id in chats:
        conversation.open_chat(chat_id)
        assert conversation.entries()[-1].ending.startswith("stopped")
