import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.entries import FAILED, Speaker
from app.chat.snapshot import Phase
from app.store.chats import ChatStore
from app.store.errors import ChatInUseError
from engine.configuration import SamplingSettings
from engine.events import Failed, SpeculationChanged
from tests.app.chat.conftest import Start, contents
from tests.support.fakes_client import CONFIGURATION, Script, text_of_ids


def test_a_question_and_its_reply_are_saved_with_their_figures(start: Start) -> None:
    conversation, _ = start()
    conversation.send("Hi\nthere")
    conversation.poll()
    assert contents(conversation) == [(Speaker.USER, "Hi\nthere"), (Speaker.MODEL, "Hello there.")]
    with ChatStore(start.path / "chats.db") as store:
        [chat] = store.list_chats()
        assert chat.title == "Hi"
        assert chat.head_id is not None
        reply = store.path_to(chat.head_id)[-1]
    assert reply.finish_reason == "end"
    assert reply.seed == 42
    assert reply.vocabulary_id == "tiny"
    assert reply.token_ids
    assert reply.stats is not None
    assert reply.stats["decode_tps"] == 74.2
    assert (reply.predictor, reply.controller) == ("lookup", "fixed")


def test_the_next_request_has_token_ids_and_system_prompt(start: Start) -> None:
    conversation, client = start()
    conversation.history.change_settings(
        system_prompt="Be brief.", sampling=SamplingSettings(temperature=0.5)
    )
    conversation.send("one")
    conversation.poll()
    conversation.send("two")
    messages = client.requests[-1].messages
    assert [m.role for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[2].token_ids
    assert messages[2].vocabulary_id == "tiny"
    assert client.requests[-1].sampling.temperature == 0.5


def test_a_chat_remembers_the_model_that_answered_last(start: Start) -> None:
    conversation, _ = start()
    conversation.send("one")
    conversation.poll()
    chat = conversation.history.chat
    assert chat is not None
    assert chat.model_path == str(CONFIGURATION.model_path)
    other = replace(CONFIGURATION, model_path=Path("Other.gguf"))
    conversation.load(other)
    conversation.poll()
    conversation.send("two")
    assert conversation.history.store.chat(chat.id).model_path == "Other.gguf"


def test_a_reply_is_on_disk_while_it_streams(start: Start) -> None:
    conversation, _ = start(Script(replies=("word " * 50,), tps=10))
    conversation.send("go")
    for _ in range(8):
        start.clock.now += 0.5
        conversation.poll()
    conversation.history.store.close()
    with ChatStore(start.path / "chats.db") as store:
        [chat] = store.list_chats()
        assert chat.head_id is not None
        saved = store.path_to(chat.head_id)[-1]
    assert saved.content.startswith("word word")
    assert saved.finish_reason is None


def test_regenerating_keeps_the_reply_that_was_there(start: Start) -> None:
    conversation, client = start(Script(replies=("first", "second")))
    conversation.send("go")
    conversation.poll()
    assert conversation.regenerate()
    conversation.poll()
    assert [m.role for m in client.requests[-1].messages] == ["user"]
    [_, reply] = conversation.entries()
    assert (reply.content, reply.variant, reply.n_variants) == ("second", 2, 2)
    assert conversation.switch_variant(reply.key, -1)
    [_, reply] = conversation.entries()
    assert (reply.content, reply.variant) == ("first", 1)
    assert not conversation.switch_variant(reply.key, -1)


def test_editing_begins_a_branch_and_keeps_the_other(start: Start) -> None:
    conversation, client = start(Script(replies=("a", "b", "c")))
    conversation.send("one")
    conversation.poll()
    conversation.send("two")
    conversation.poll()
    question = conversation.entries()[0]
    conversation.edit(question.key, "other")
    conversation.poll()
    assert contents(conversation) == [(Speaker.USER, "other"), (Speaker.MODEL, "c")]
    assert [m.content for m in client.requests[-1].messages] == ["other"]
    edited = conversation.entries()[0]
    assert conversation.switch_variant(edited.key, -1)
    assert [text for _, text in contents(conversation)] == ["one", "a", "two", "b"]


def test_a_refused_question_returns_and_the_chat_is_unchanged(start: Start) -> None:
    conversation, client = start()
    conversation.send("fine")
    conversation.poll()
    client.script = Script(refuses=("The chat template failed", "it knows no such turn"))
    conversation.send("not like this")
    change = conversation.poll()
    assert change.returned_text == "not like this"
    assert change.notices[0].severity == "error"
    speakers = [speaker for speaker, _ in contents(conversation)]
    assert speakers == [Speaker.USER, Speaker.MODEL, Speaker.NOTE]
    assert conversation.can_ask


def test_a_refused_first_question_leaves_no_empty_chat(start: Start) -> None:
    script = Script(refuses=("The context is full", "9,000 tokens but n_ctx is 8,192"))
    conversation, client = start(script)
    conversation.send("much too long")
    assert conversation.poll().returned_text == "much too long"
    assert conversation.history.store.list_chats() == []
    assert [speaker for speaker, _ in contents(conversation)] == [Speaker.NOTE]
    client.script = Script()
    conversation.send("shorter")
    conversation.poll()
    assert contents(conversation)[-1] == (Speaker.MODEL, "Hello there.")


@pytest.mark.parametrize(("n_ctx", "is_named"), [(4096, True), (8192, False)])
def test_a_larger_context_is_offered_if_the_model_has_one(
    n_ctx: int, is_named: bool, start: Start
) -> None:
    conversation, client = start(Script())
    conversation.load(replace(CONFIGURATION, n_ctx=n_ctx))
    conversation.poll()
    client.script = Script(refuses=("The context is full", "9,000 tokens but n_ctx is 8,192"))
    conversation.send("much too long")
    [notice] = conversation.poll().notices
    assert ("{model-plan} plans a larger context" in notice.message) == is_named
    assert ("{model-plan} plans a larger context" in contents(conversation)[-1][1]) == is_named


def test_a_failed_decode_saves_the_text_and_the_engine_continues(start: Start) -> None:
    conversation, client = start(Script(replies=("word " * 20,), fails_after=4))
    conversation.send("go")
    conversation.poll()
    reply, aside = conversation.entries()[1:]
    assert reply.content.startswith("word")
    assert FAILED in reply.ending
    stored = conversation.history.message(reply.key)
    assert (stored.content, text_of_ids(stored.token_ids or ())) == (reply.content, reply.content)
    assert aside.content == "Decoding failed: llama_decode returned -3."
    client.script = Script()
    conversation.send("again")
    conversation.poll()
    assert contents(conversation)[-1] == (Speaker.MODEL, "Hello there.")


def test_a_failed_load_is_reported_and_can_be_repeated(start: Start) -> None:
    script = Script(fails_to_load=("The model could not be loaded", "no memory: lower n_ctx"))
    conversation, client = start.without_model(script)
    conversation.load(CONFIGURATION)
    change = conversation.poll()
    assert change.notices[0].message == "no memory: lower n_ctx"
    assert conversation.snapshot().phase is Phase.STOPPED
    assert len(conversation.entries()) == 1
    client.script = Script()
    conversation.load(CONFIGURATION)
    conversation.poll()
    assert conversation.can_ask
    assert conversation.entries() == []


def test_one_kvchat_at_a_time_sends_in_a_chat(start: Start) -> None:
    answering, _ = start(Script(replies=("word " * 50,), tps=10))
    answering.send("go")
    chat = answering.history.chat
    assert chat is not None
    start.clock.now += 1
    answering.poll()
    other, client = start.without_model(Script(replies=("theirs",)))
    other.load(CONFIGURATION)
    other.poll()
    other.open_chat(chat.id)
    before = other.history.store.tree(chat.id).messages
    for ask in (
        lambda: other.send("me too"),
        lambda: other.edit(before[0].id, "otherwise"),
        other.regenerate,
        other.continue_reply,
        lambda: other.delete_chat(chat.id),
    ):
        with pytest.raises(ChatInUseError, match="another kvchat process"):
            ask()
    assert other.history.store.tree(chat.id).messages == before
    answering.new_chat()
    with pytest.raises(ChatInUseError):
        other.send("its reply goes on in the background")
    start.clock.now += 20
    answering.poll()
    other.send("me too")
    other.poll()
    asked = [message.content for message in client.requests[-1].messages]
    assert asked[0] == "go"
    assert asked[1].startswith("word word")
    assert asked[2] == "me too"
    assert [entry.content for entry in other.entries()][-1] == "theirs"


def test_a_question_follows_those_of_another_kvchat(start: Start) -> None:
    first, _ = start()
    first.send("one")
    first.poll()
    assert first.history.chat is not None
    second, client = start.without_model()
    second.load(CONFIGURATION)
    second.poll()
    second.open_chat(first.history.chat.id)
    first.send("two")
    first.poll()
    second.send("three")
    second.poll()
    asked = [message.content for message in client.requests[-1].messages]
    assert asked == ["one", "Hello there.", "two", "Hello there.", "three"]
    assert [entry.content for entry in second.entries()][::2] == ["one", "two", "three"]


def test_a_chat_keeps_its_own_settings(start: Start) -> None:
    conversation, _ = start()
    conversation.send("go")
    conversation.poll()
    sampling = SamplingSettings(temperature=1.5)
    conversation.history.change_settings(system_prompt="Rhyme.", sampling=sampling)
    chat = conversation.history.chat
    assert chat is not None
    conversation.new_chat()
    assert conversation.history.system_prompt == ""
    conversation.open_chat(chat.id)
    assert conversation.history.system_prompt == "Rhyme."
    assert conversation.history.sampling == sampling


def test_a_question_without_reply_joins_the_next(start: Start) -> None:
    conversation, client = start(Script(replies=("late",), prefill_s=9))
    conversation.send("one")
    conversation.poll()
    conversation.stop()
    conversation.poll()
    conversation.send("two")
    assert [(m.role, m.content) for m in client.requests[-1].messages] == [("user", "one\n\ntwo")]


def test_a_chat_deleted_by_another_process_is_reported(start: Start) -> None:
    conversation, _ = start(Script(replies=("word " * 50,), tps=10))
    conversation.send("go")
    chat = conversation.history.chat
    assert chat is not None
    with sqlite3.connect(start.path / "chats.db") as other:  # as an older kvchat may
        other.execute("DELETE FROM chats")
    other.close()
    start.clock.now += 60
    notices = conversation.poll().notices
    assert any("no longer exists" in notice.message for notice in notices)


def test_the_system_prompt_is_prefilled_before_the_first_question(start: Start) -> None:
    script = Script(replies=("Hello.",), prefill_s=4.0)
    conversation, client = start.without_model(script, system_prompt="Be kind.")
    conversation.load(CONFIGURATION)
    conversation.poll()
    [request] = client.requests
    assert request.reads_only
    assert [m.content for m in request.messages] == ["Be kind."]
    assert conversation.can_ask
    assert not conversation.is_replying
    start.clock.now += 10
    conversation.poll()
    assert conversation.entries() == []
    conversation.send("Hi")
    start.clock.now += 10
    conversation.poll()
    assert contents(conversation) == [(Speaker.USER, "Hi"), (Speaker.MODEL, "Hello.")]
    first = conversation.history.chat
    assert first is not None
    conversation.new_chat()
    assert client.requests[-1].reads_only
    assert client.n_stops == 0
    conversation.open_chat(first.id)
    assert client.n_stops == 1, "what another chat begins with can wait"
    assert [each.reads_only for each in client.requests] == [True, False, True]


def test_nothing_is_preloaded_without_system_prompt_or_during_a_reply(start: Start) -> None:
    conversation, client = start(Script(replies=("word " * 50,), tps=10))
    conversation.new_chat()
    assert client.requests == []
    conversation.history.change_settings(system_prompt="Be kind.", sampling=SamplingSettings())
    conversation.send("go")
    conversation.new_chat()
    assert [each.reads_only for each in client.requests] == [False]


def test_what_the_engine_reports_beside_replies_is_a_notice(start: Start) -> None:
    conversation, client = start()
    client.emit(Failed("The state cannot be loaded", "it is damaged"))
    client.emit(SpeculationChanged("off", "", "a server drafts by itself"))
    notices = conversation.poll().notices
    assert [(each.title, each.message) for each in notices] == [
        ("The state cannot be loaded", "it is damaged"),
        ("Speculation", "a server drafts by itself"),
    ]


def test_a_load_is_stopped_like_a_reply(start: Start) -> None:
    conversation, client = start.without_model()
    assert not conversation.stop()
    conversation.load(CONFIGURATION)
    conversation.stop()
    assert client.n_stops == 1
