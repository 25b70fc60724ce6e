from dataclasses import replace

import pytest

from app.chat.context import INSTRUCTION
from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.chat.entries import DIVIDER_KEY, SUMMARY_BEGINS, Speaker
from engine.configuration import SamplingSettings
from engine.events import FinishReason
from tests.app.chat.conftest import Start, contents
from tests.support.fakes_client import CONFIGURATION, FULL, Script, ScriptedClient

SMALL = replace(CONFIGURATION, n_ctx=512)


def chat_of(start: Start, n_turns: int = 6) -> tuple[Conversation, ScriptedClient]:
    """A chat of so many turns of about 100 tokens in a context of 512."""
    conversation, client = start(Script(replies=("reply " * 40,)))
    conversation.load(SMALL)
    conversation.poll()
    conversation.history.change_settings(system_prompt="Be kind.", sampling=SamplingSettings())
    for i in range(n_turns):
        conversation.send(f"question {i} " + "please " * 15)
        conversation.poll()
    return conversation, client


def refused(start: Start) -> tuple[Conversation, ScriptedClient, ContextFull]:
    conversation, client = chat_of(start)
    client.script = FULL
    conversation.send("one more")
    change = conversation.poll()
    assert change.context_full == "the prompt has 900 tokens, the context has 512"
    assert change.returned_text is None
    client.script = Script(replies=("and here it is",))
    return conversation, client, ContextFull(conversation)


def test_a_full_context_drops_nothing_by_itself(start: Start) -> None:
    conversation, _, maker = refused(start)
    assert conversation.history.n_hidden == 0
    assert contents(conversation)[-2][1] == "one more"
    assert "{composer-send} shows ways" in conversation.entries()[-1].ending
    assert maker.is_needed()
    choices = maker.options()
    assert 0 < choices.n_dropped < 12
    assert choices.can_branch
    assert choices.can_take_back


def test_dropping_hides_the_oldest_turns_from_the_model_only(start: Start) -> None:
    conversation, client, maker = refused(start)
    n_dropped = maker.options().n_dropped
    maker.shift()
    conversation.poll()
    request = client.requests[-1]
    assert request.is_trimmed
    assert [m.role for m in request.messages[:2]] == ["system", "user"]
    assert len(request.messages) == 1 + 13 - n_dropped
    assert request.messages[-1].content == "one more"
    entries = conversation.entries()
    assert [e.key for e in entries].index(DIVIDER_KEY) == n_dropped
    assert entries[0].content.startswith("question 0"), "the user still sees it"
    assert entries[-1].content == "and here it is"
    conversation.send("next")
    conversation.poll()
    assert "question 0" not in "".join(m.content for m in client.requests[-1].messages)


def test_a_summary_replaces_the_dropped_turns(start: Start) -> None:
    conversation, client, maker = refused(start)
    client.play(Script(replies=("They asked six times.", "and here it is")))
    n_dropped = maker.options().n_dropped
    maker.summarise()
    asked = client.requests[-1]
    assert asked.messages[-1].content == INSTRUCTION
    assert len(asked.messages) == 1 + n_dropped + 1
    assert asked.owner == f"chat:{conversation.history.chat.id}"  # type: ignore[union-attr]
    assert not conversation.can_ask
    assert "stops the summary" in "".join(entry.content for entry in conversation.entries())
    for _ in range(3):
        conversation.poll()
    request = client.requests[-1]
    assert request.messages[0].content == f"Be kind.\n\n{SUMMARY_BEGINS}\nThey asked six times."
    assert not request.is_trimmed
    [divider] = [e for e in conversation.entries() if e.speaker is Speaker.DIVIDER]
    assert divider.content == "They asked six times."
    assert conversation.entries()[-1].content == "and here it is"
    assert "stops the summary" not in "".join(entry.content for entry in conversation.entries())
    assert conversation.can_ask


@pytest.mark.parametrize("is_open_elsewhere", [True, False])
def test_a_summary_of_another_chat_is_saved_under_its_lock(
    is_open_elsewhere: bool, start: Start
) -> None:
    conversation, client, maker = refused(start)
    client.play(Script(replies=("They asked six times.", "and here it is")))
    maker.summarise()
    chat = conversation.history.chat
    assert chat is not None
    conversation.new_chat()
    store = conversation.history.store
    other = store.lock_chat(chat.id) if is_open_elsewhere else None
    notices = [notice.message for _ in range(3) for notice in conversation.poll().notices]
    assert (store.chat(chat.id).summary is None) is is_open_elsewhere
    assert any("another kvchat process" in text for text in notices) is is_open_elsewhere
    if other is not None:
        other.close()


def test_a_summary_that_does_not_fit_changes_nothing(start: Start) -> None:
    conversation, client, maker = refused(start)
    client.script = FULL
    maker.summarise()
    [notice] = conversation.poll().notices
    assert notice.message.startswith("No summary: The context is full")
    assert maker.is_needed()
    assert conversation.can_ask


def test_a_summary_that_is_stopped_changes_nothing(start: Start) -> None:
    conversation, client, maker = refused(start)
    client.script = Script(replies=("word " * 99,), tps=1)
    maker.summarise()
    conversation.poll()
    assert conversation.stop()
    start.clock.now += 5
    change = conversation.poll()
    assert "generation was stopped" in change.notices[-1].message
    assert conversation.history.n_hidden == 0
    assert maker.is_needed()
    assert conversation.can_ask


def test_a_summary_is_stopped_in_its_own_chat_alone(start: Start) -> None:
    conversation, client, maker = refused(start)
    client.script = Script(replies=("word " * 99,), tps=1)
    summarised = conversation.history.chat
    assert summarised is not None
    maker.summarise()
    conversation.new_chat()
    assert not conversation.stop()
    conversation.poll()
    assert conversation.has_task
    conversation.open_chat(summarised.id)
    assert conversation.stop()


def test_loading_a_model_ends_a_summary_and_its_note(start: Start) -> None:
    conversation, client, maker = refused(start)
    client.script = Script(replies=("summary " * 50,), tps=5)
    maker.summarise()
    assert any("stops the summary" in text for _, text in contents(conversation))
    conversation.load(SMALL)
    change = conversation.poll()
    assert not any("stops the summary" in text for _, text in contents(conversation))
    assert "another model was loaded in the meantime" in change.notices[0].message
    assert not conversation.has_task


def test_a_later_summary_takes_the_earlier_one_in(start: Start) -> None:
    conversation, client, maker = refused(start)
    client.play(Script(replies=("First summary.", "answer " * 40)))
    maker.summarise()
    for _ in range(3):
        conversation.poll()
    for _ in range(3):
        conversation.send("more " * 20)
        conversation.poll()
    maker.summarise()
    asked = client.requests[-1]
    assert "First summary." in asked.messages[0].content
    assert "question 0" not in "".join(m.content for m in asked.messages)


def test_a_question_longer_than_the_context_returns(
    start: Start,
) -> None:
    conversation, client = chat_of(start)
    client.script = FULL
    too_long = "one more " * 512
    conversation.send(too_long)
    change = conversation.poll()
    assert change.context_full is None
    assert change.returned_text == too_long
    assert contents(conversation)[-2][1] == "reply " * 40
    assert "The context is full" in contents(conversation)[-1][1]


def test_a_reply_that_fills_the_context_continues_after_a_drop(start: Start) -> None:
    conversation, client = chat_of(start)
    client.play(Script(replies=("first half", " second half"), fills_after=2))
    conversation.send("go on")
    assert conversation.poll().context_full == "all 8,192 cells of the KV cache are used"
    cut = conversation.entries()[-1]
    assert conversation.history.message(cut.key).finish_reason == FinishReason.CONTEXT
    maker = ContextFull(conversation)
    assert not maker.options().can_take_back
    client.script = Script(replies=(" second half",))
    maker.shift()
    conversation.poll()
    assert client.requests[-1].continues
    assert client.requests[-1].is_trimmed
    whole = conversation.entries()[-1]
    assert (whole.key, whole.content) == (cut.key, cut.content + " second half")


def test_a_larger_context_needs_no_drop(start: Start) -> None:
    conversation, _, maker = refused(start)
    conversation.load(CONFIGURATION)
    conversation.poll()
    assert not maker.is_needed()
    assert conversation.continue_reply()
    conversation.poll()
    assert conversation.entries()[-1].content == "and here it is"
