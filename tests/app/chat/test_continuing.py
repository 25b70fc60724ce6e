from dataclasses import replace

import pytest

from app.chat.conversation import Conversation
from app.chat.entries import CONTINUES, Speaker
from app.store.chats import ChatStore
from engine.events import FinishReason
from tests.app.chat.conftest import Clock, Start, contents
from tests.support.chats import add_chat, add_message
from tests.support.fakes_app import release_locks
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient, text_of_ids

FIRST = "one two three four five six seven eight nine ten"
SECOND = " and the rest."


def stopped(
    start: Start, *, replies: tuple[str, ...] = (FIRST, SECOND)
) -> tuple[Conversation, ScriptedClient]:
    """A chat whose reply was stopped in the middle."""
    conversation, client = start(Script(replies=replies, tps=10))
    conversation.send("count")
    for _ in range(3):
        start.clock.now += 0.1
        conversation.poll()
    conversation.stop()
    conversation.poll()
    return conversation, client


def finished(conversation: Conversation, clock: Clock) -> None:
    for _ in range(40):
        clock.now += 0.5
        conversation.poll()
    assert not conversation.is_replying


def test_a_stopped_reply_continues_in_its_message(start: Start) -> None:
    conversation, client = stopped(start)
    [_, cut] = conversation.entries()
    assert 0 < len(cut.content) < len(FIRST)
    assert cut.ending.endswith(CONTINUES)
    assert conversation.continue_reply()
    assert text_of_ids(client.requests[-1].continues) == cut.content
    assert [m.role for m in client.requests[-1].messages] == ["user"]
    start.clock.now += 0.1
    conversation.poll()
    assert conversation.entries()[-1].content.startswith(cut.content)
    finished(conversation, start.clock)
    [_, whole] = conversation.entries()
    assert whole.key == cut.key
    assert whole.content == cut.content + SECOND
    assert "continues the reply" not in whole.ending
    assert not conversation.continue_reply()
    stored = conversation.history.message(whole.key)
    assert stored.finish_reason == FinishReason.END
    assert text_of_ids(stored.token_ids or ()) == whole.content


def test_the_statistics_of_both_parts_are_added_up(start: Start) -> None:
    conversation, _ = stopped(start)
    [_, cut] = conversation.entries()
    first = conversation.history.message(cut.key).stats
    conversation.continue_reply()
    finished(conversation, start.clock)
    whole = conversation.history.message(cut.key)
    assert first is not None
    assert whole.stats is not None
    assert isinstance(first["n_emitted"], int)
    assert 0 < first["n_emitted"] < len(whole.token_ids or ())
    assert whole.stats["n_emitted"] == len(whole.token_ids or ())


@pytest.mark.parametrize("how", ["another load", "fork", "close", "engine ends"])
def test_a_reply_cut_without_event_counts_its_tokens(start: Start, how: str) -> None:
    dies_after = 6 if how == "engine ends" else None
    script = Script(replies=(FIRST, SECOND), tps=20, dies_after=dies_after)
    conversation, client = start(script)
    conversation.send("count")
    for _ in range(4):
        start.clock.now += 0.1
        conversation.poll()
    match how:
        case "another load":
            conversation.load(CONFIGURATION)
        case "fork":
            conversation.fork(conversation.entries()[-1].key)
        case "close":
            conversation.begin_close()
            client.is_closed = False
    client.script = replace(script, dies_after=None)
    conversation.load(CONFIGURATION)
    conversation.poll()
    cut = conversation.history.message(conversation.entries()[-1].key)
    assert cut.stats is not None
    assert cut.stats["n_emitted"] == len(cut.token_ids or ()) > 0
    assert cut.stats["n_prompt"]
    assert conversation.continue_reply()
    finished(conversation, start.clock)
    whole = conversation.history.message(cut.id)
    assert whole.stats is not None
    assert whole.stats["n_emitted"] == len(whole.token_ids or ()) > len(cut.token_ids or ())


def test_a_reply_whose_start_has_no_counts_has_none(start: Start) -> None:
    conversation, _ = stopped(start)
    cut = conversation.history.message(conversation.entries()[-1].key)
    conversation.edit(cut.id, f"{cut.content} and my own words")
    finished(conversation, start.clock)
    assert conversation.history.message(conversation.entries()[-1].key).stats is None


def test_a_reply_of_a_killed_kvchat_continues(start: Start) -> None:
    conversation, _ = start(Script(replies=(FIRST,), tps=10))
    conversation.send("count")
    for _ in range(8):
        start.clock.now += 0.1
        conversation.poll()
    release_locks(conversation)
    conversation.history.store.close()  # the reply never ends: nothing more is written

    again, client = start.without_model(Script(replies=(SECOND,)))
    again.load(CONFIGURATION)
    again.poll()
    [chat] = again.history.store.list_chats()
    again.open_chat(chat.id)
    [_, cut] = again.entries()
    assert cut.content
    assert again.continue_reply()
    assert text_of_ids(client.requests[0].continues) == cut.content
    finished(again, start.clock)
    assert again.entries()[-1].content == cut.content + SECOND


def test_a_reply_that_is_killed_while_it_continues_has_no_figures_of_its_first_part(
    start: Start,
) -> None:
    conversation, _ = stopped(start, replies=(FIRST, FIRST))
    cut = conversation.history.message(conversation.entries()[-1].key)
    assert conversation.continue_reply()
    for _ in range(3):
        start.clock.now += 0.1
        conversation.poll()
    conversation.history.store.flush()
    with ChatStore(start.path / "chats.db") as store:
        killed = store.message(cut.id)
    assert len(killed.content) > len(cut.content)
    assert (killed.stats, killed.predictor, killed.controller) == (None, None, None)


def test_a_refused_continuation_changes_nothing(start: Start) -> None:
    conversation, client = stopped(start)
    before = conversation.history.message(conversation.entries()[-1].key)
    client.script = Script(refuses=("Decoding failed", "no"))
    conversation.continue_reply()
    conversation.poll()
    after = conversation.history.message(before.id)
    assert (after.content, after.token_ids) == (before.content, before.token_ids)
    assert (after.finish_reason, after.seed) == (before.finish_reason, before.seed)
    assert after.stats == before.stats
    assert conversation.history.head_id == before.id


def test_a_reply_of_another_vocabulary_continues_by_its_text(start: Start) -> None:
    conversation, client = stopped(start)
    assert conversation.loaded is not None
    cut = conversation.history.message(conversation.entries()[-1].key)
    conversation.loaded = replace(conversation.loaded, vocabulary_id="other")
    assert conversation.continue_reply()
    request = client.requests[-1]
    assert (request.continues, request.continues_text) == ((), cut.content)
    client.script = Script(refuses=("Decoding failed", "no"))
    finished(conversation, start.clock)
    whole = conversation.history.message(cut.id)
    assert whole.content == cut.content + SECOND
    assert whole.token_ids


def test_a_question_that_was_never_answered_is_answered(start: Start) -> None:
    with ChatStore(start.path / "chats.db") as store:
        chat = add_chat(store, "open")
        add_message(store, chat.id, None, "user", "anyone?")
    conversation, client = start()
    conversation.open_chat(chat.id)
    assert "sends the question" in conversation.entries()[-1].ending
    assert conversation.continue_reply()
    conversation.poll()
    assert client.requests[0].messages[0].content == "anyone?"
    assert contents(conversation)[-1] == (Speaker.MODEL, "Hello there.")


def test_a_reply_without_text_is_generated_in_its_message(start: Start) -> None:
    conversation, client = stopped(start)
    cut = conversation.history.message(conversation.entries()[-1].key)
    conversation.history.store.finish_message(replace(cut, content="", vocabulary_id="other"))
    conversation.history.refresh()
    assert conversation.continue_reply()
    assert client.requests[-1].continues == ()
    finished(conversation, start.clock)
    assert conversation.entries()[-1].key == cut.id
    assert conversation.entries()[-1].content == SECOND


def test_a_chat_is_prefetched_when_opened_or_its_model_loaded(
    start: Start,
) -> None:
    conversation, client = stopped(start)
    chat = conversation.history.chat
    assert chat is not None
    conversation.new_chat()
    client.prefetched.clear()
    conversation.open_chat(chat.id)
    [messages] = client.prefetched
    assert [m.role for m in messages] == ["user", "assistant"]
    assert messages[1].token_ids
    conversation.load(CONFIGURATION)
    conversation.poll()
    assert client.prefetched == [messages, messages]
