import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.entries import FAILED, Speaker
from app.chat.snapshot import Phase
from app.store.chats import ChatStore
from app.store.errors import ChatInUseError
from engine.configuration import SamplingSettings
from tests.app.chat.conftest import Clock, contents, loaded
from tests.support.fakes_app import make_controller
from tests.support.fakes_client import CONFIGURATION, Script, spelled


def test_a_question_and_its_reply_are_saved_with_what_the_engine_said(
    tmp_path: Path, clock: Clock
) -> None:
    controller, _ = loaded(tmp_path, clock)
    controller.send("Hi\nthere")
    controller.poll()
    assert contents(controller) == [(Speaker.USER, "Hi\nthere"), (Speaker.MODEL, "Hello there.")]
    with ChatStore(tmp_path / "chats.db") as store:
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


def test_the_next_request_carries_the_token_ids_and_the_system_prompt(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = loaded(tmp_path, clock)
    controller.history.change_settings(
        system_prompt="Be brief.", sampling=SamplingSettings(temperature=0.5)
    )
    controller.send("one")
    controller.poll()
    controller.send("two")
    messages = client.requests[-1].messages
    assert [m.role for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[2].token_ids
    assert messages[2].vocabulary_id == "tiny"
    assert client.requests[-1].sampling.temperature == 0.5


def test_a_chat_remembers_the_model_that_answered_last(tmp_path: Path, clock: Clock) -> None:
    controller, _ = loaded(tmp_path, clock)
    controller.send("one")
    controller.poll()
    chat = controller.history.chat
    assert chat is not None
    assert chat.model_path == str(CONFIGURATION.model_path)
    other = replace(CONFIGURATION, model_path=Path("Other.gguf"))
    controller.load(other)
    controller.poll()
    controller.send("two")
    assert controller.history.store.chat(chat.id).model_path == "Other.gguf"


def test_a_reply_is_on_disk_while_it_streams(tmp_path: Path, clock: Clock) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=("word " * 50,), tps=10))
    controller.send("go")
    for _ in range(8):
        clock.now += 0.5
        controller.poll()
    controller.history.store.close()
    with ChatStore(tmp_path / "chats.db") as store:
        [chat] = store.list_chats()
        assert chat.head_id is not None
        saved = store.path_to(chat.head_id)[-1]
    assert saved.content.startswith("word word")
    assert saved.finish_reason is None


def test_regenerating_keeps_the_reply_that_was_there(tmp_path: Path, clock: Clock) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=("first", "second")))
    controller.send("go")
    controller.poll()
    assert controller.regenerate()
    controller.poll()
    assert [m.role for m in client.requests[-1].messages] == ["user"]
    [_, reply] = controller.entries()
    assert (reply.content, reply.variant, reply.n_variants) == ("second", 2, 2)
    assert controller.switch_variant(reply.key, -1)
    [_, reply] = controller.entries()
    assert (reply.content, reply.variant) == ("first", 1)
    assert not controller.switch_variant(reply.key, -1)


def test_editing_begins_a_branch_and_keeps_the_other(tmp_path: Path, clock: Clock) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=("a", "b", "c")))
    controller.send("one")
    controller.poll()
    controller.send("two")
    controller.poll()
    question = controller.entries()[0]
    controller.edit(question.key, "other")
    controller.poll()
    assert contents(controller) == [(Speaker.USER, "other"), (Speaker.MODEL, "c")]
    assert [m.content for m in client.requests[-1].messages] == ["other"]
    edited = controller.entries()[0]
    assert controller.switch_variant(edited.key, -1)
    assert [text for _, text in contents(controller)] == ["one", "a", "two", "b"]


def test_a_refused_question_comes_back_and_leaves_the_chat_as_it_was(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = loaded(tmp_path, clock)
    controller.send("fine")
    controller.poll()
    client.script = Script(refuses=("The chat template failed", "it knows no such turn"))
    controller.send("not like this")
    change = controller.poll()
    assert change.returned_text == "not like this"
    assert change.notices[0].severity == "error"
    speakers = [speaker for speaker, _ in contents(controller)]
    assert speakers == [Speaker.USER, Speaker.MODEL, Speaker.NOTE]
    assert controller.can_ask


def test_a_first_question_that_is_refused_leaves_no_empty_chat(
    tmp_path: Path, clock: Clock
) -> None:
    script = Script(refuses=("The context is full", "9,000 tokens but n_ctx is 8,192"))
    controller, client = loaded(tmp_path, clock, script)
    controller.send("much too long")
    assert controller.poll().returned_text == "much too long"
    assert controller.history.store.list_chats() == []
    assert [speaker for speaker, _ in contents(controller)] == [Speaker.NOTE]
    client.script = Script()
    controller.send("shorter")
    controller.poll()
    assert contents(controller)[-1] == (Speaker.MODEL, "Hello there.")


@pytest.mark.parametrize(("n_ctx", "is_named"), [(4096, True), (8192, False)])
def test_a_larger_context_is_only_offered_where_the_model_can_use_one(
    n_ctx: int, is_named: bool, tmp_path: Path, clock: Clock
) -> None:
    controller, client = loaded(tmp_path, clock, Script())
    controller.load(replace(CONFIGURATION, n_ctx=n_ctx))
    controller.poll()
    client.script = Script(refuses=("The context is full", "9,000 tokens but n_ctx is 8,192"))
    controller.send("much too long")
    [notice] = controller.poll().notices
    assert ("{model-plan} plans a larger context" in notice.message) == is_named
    assert ("{model-plan} plans a larger context" in contents(controller)[-1][1]) == is_named


def test_a_fault_in_the_middle_keeps_the_text_and_the_engine_goes_on(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=("word " * 20,), fails_after=4))
    controller.send("go")
    controller.poll()
    reply, aside = controller.entries()[1:]
    assert reply.content.startswith("word")
    assert FAILED in reply.ending
    stored = controller.history.message(reply.key)
    assert (stored.content, spelled(stored.token_ids or ())) == (reply.content, reply.content)
    assert aside.content == "Decoding failed: llama_decode returned -3."
    client.script = Script()
    controller.send("again")
    controller.poll()
    assert contents(controller)[-1] == (Speaker.MODEL, "Hello there.")


def test_a_load_that_fails_is_told_and_another_can_be_tried(tmp_path: Path, clock: Clock) -> None:
    script = Script(fails_to_load=("The model could not be loaded", "no memory: lower n_ctx"))
    controller, client = make_controller(tmp_path, script, clock=clock)
    controller.load(CONFIGURATION)
    change = controller.poll()
    assert change.notices[0].message == "no memory: lower n_ctx"
    assert controller.snapshot().phase is Phase.STOPPED
    assert len(controller.entries()) == 1
    client.script = Script()
    controller.load(CONFIGURATION)
    controller.poll()
    assert controller.can_ask
    assert controller.entries() == []


def test_a_chat_is_asked_by_one_kvchat_at_a_time(tmp_path: Path, clock: Clock) -> None:
    answering, _ = loaded(tmp_path, clock, Script(replies=("word " * 50,), tps=10))
    answering.send("go")
    chat = answering.history.chat
    assert chat is not None
    clock.now += 1
    answering.poll()
    other, client = make_controller(tmp_path, Script(replies=("theirs",)), clock=clock)
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
    clock.now += 20
    answering.poll()
    other.send("me too")
    other.poll()
    asked = [message.content for message in client.requests[-1].messages]
    assert asked[0] == "go"
    assert asked[1].startswith("word word")
    assert asked[2] == "me too"
    assert [entry.content for entry in other.entries()][-1] == "theirs"


def test_a_question_goes_behind_what_another_kvchat_has_asked_meanwhile(
    tmp_path: Path, clock: Clock
) -> None:
    first, _ = loaded(tmp_path, clock)
    first.send("one")
    first.poll()
    assert first.history.chat is not None
    second, client = make_controller(tmp_path, clock=clock)
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


def test_a_chat_keeps_its_own_settings(tmp_path: Path, clock: Clock) -> None:
    controller, _ = loaded(tmp_path, clock)
    controller.send("go")
    controller.poll()
    sampling = SamplingSettings(temperature=1.5)
    controller.history.change_settings(system_prompt="Rhyme.", sampling=sampling)
    chat = controller.history.chat
    assert chat is not None
    controller.new_chat()
    assert controller.history.system_prompt == ""
    controller.open_chat(chat.id)
    assert controller.history.system_prompt == "Rhyme."
    assert controller.history.sampling == sampling


def test_a_question_whose_reply_never_began_joins_the_next(tmp_path: Path, clock: Clock) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=("late",), prefill_s=9))
    controller.send("one")
    controller.poll()
    controller.stop()
    controller.poll()
    controller.send("two")
    assert [(m.role, m.content) for m in client.requests[-1].messages] == [("user", "one\n\ntwo")]


def test_a_chat_deleted_by_another_process_is_told_and_breaks_nothing(
    tmp_path: Path, clock: Clock
) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=("word " * 50,), tps=10))
    controller.send("go")
    chat = controller.history.chat
    assert chat is not None
    with sqlite3.connect(tmp_path / "chats.db") as other:  # as an older kvchat may
        other.execute("DELETE FROM chats")
    other.close()
    clock.now += 60
    notices = controller.poll().notices
    assert any("no longer exists" in notice.message for notice in notices)


def test_the_instruction_of_a_new_chat_is_read_before_the_first_question(
    tmp_path: Path, clock: Clock
) -> None:
    script = Script(replies=("Hello.",), prefill_s=4.0)
    controller, client = make_controller(tmp_path, script, clock=clock, system_prompt="Be kind.")
    controller.load(CONFIGURATION)
    controller.poll()
    [request] = client.requests
    assert request.reads_only
    assert [m.content for m in request.messages] == ["Be kind."]
    assert controller.can_ask
    assert not controller.is_replying
    clock.now += 10
    controller.poll()
    assert controller.entries() == []
    controller.send("Hi")
    clock.now += 10
    controller.poll()
    assert contents(controller) == [(Speaker.USER, "Hi"), (Speaker.MODEL, "Hello.")]
    first = controller.history.chat
    assert first is not None
    controller.new_chat()
    assert client.requests[-1].reads_only
    assert client.n_stops == 0
    controller.open_chat(first.id)
    assert client.n_stops == 1, "what another chat begins with can wait"
    assert [each.reads_only for each in client.requests] == [True, False, True]


def test_nothing_is_read_ahead_without_an_instruction_or_beside_a_reply(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = loaded(tmp_path, clock, Script(replies=("word " * 50,), tps=10))
    controller.new_chat()
    assert client.requests == []
    controller.history.change_settings(system_prompt="Be kind.", sampling=SamplingSettings())
    controller.send("go")
    controller.new_chat()
    assert [each.reads_only for each in client.requests] == [False]
