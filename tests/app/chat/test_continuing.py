from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.chat.entries import CONTINUES, Speaker
from app.store.chats import ChatStore
from engine.events import FinishReason
from tests.app.chat.conftest import Clock, contents, loaded
from tests.support.chats import add_chat, add_message
from tests.support.fakes_app import make_controller, release_locks
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient, spelled

FIRST = "one two three four five six seven eight nine ten"
SECOND = " and the rest."


def stopped(
    tmp_path: Path, clock: Clock, *, replies: tuple[str, ...] = (FIRST, SECOND)
) -> tuple[Conversation, ScriptedClient]:
    """A chat whose reply was stopped in the middle."""
    controller, client = loaded(tmp_path, clock, Script(replies=replies, tps=10))
    controller.send("count")
    for _ in range(3):
        clock.now += 0.1
        controller.poll()
    controller.stop()
    controller.poll()
    return controller, client


def finished(controller: Conversation, clock: Clock) -> None:
    for _ in range(40):
        clock.now += 0.5
        controller.poll()
    assert not controller.is_replying


def test_a_reply_that_was_stopped_goes_on_in_the_same_message(tmp_path: Path, clock: Clock) -> None:
    controller, client = stopped(tmp_path, clock)
    [_, cut] = controller.entries()
    assert 0 < len(cut.content) < len(FIRST)
    assert cut.ending.endswith(CONTINUES)
    assert controller.continue_reply()
    assert spelled(client.requests[-1].continues) == cut.content
    assert [m.role for m in client.requests[-1].messages] == ["user"]
    clock.now += 0.1
    controller.poll()
    assert controller.entries()[-1].content.startswith(cut.content)
    finished(controller, clock)
    [_, whole] = controller.entries()
    assert whole.key == cut.key
    assert whole.content == cut.content + SECOND
    assert "continues the reply" not in whole.ending
    assert not controller.continue_reply()
    stored = controller.history.message(whole.key)
    assert stored.finish_reason == FinishReason.END
    assert spelled(stored.token_ids or ()) == whole.content


def test_the_statistics_of_both_parts_are_added_up(tmp_path: Path, clock: Clock) -> None:
    controller, _ = stopped(tmp_path, clock)
    [_, cut] = controller.entries()
    first = controller.history.message(cut.key).stats
    controller.continue_reply()
    finished(controller, clock)
    whole = controller.history.message(cut.key)
    assert first is not None
    assert whole.stats is not None
    assert isinstance(first["n_emitted"], int)
    assert 0 < first["n_emitted"] < len(whole.token_ids or ())
    assert whole.stats["n_emitted"] == len(whole.token_ids or ())


@pytest.mark.parametrize("how", ["another load", "fork", "close", "engine ends"])
def test_a_reply_that_was_cut_without_a_word_of_the_engine_counts_all_of_its_tokens(
    tmp_path: Path, clock: Clock, how: str
) -> None:
    dies_after = 6 if how == "engine ends" else None
    script = Script(replies=(FIRST, SECOND), tps=20, dies_after=dies_after)
    controller, client = loaded(tmp_path, clock, script)
    controller.send("count")
    for _ in range(4):
        clock.now += 0.1
        controller.poll()
    match how:
        case "another load":
            controller.load(CONFIGURATION)
        case "fork":
            controller.fork(controller.entries()[-1].key)
        case "close":
            controller.begin_close()
            client.is_closed = False
    client.script = replace(script, dies_after=None)
    controller.load(CONFIGURATION)
    controller.poll()
    cut = controller.history.message(controller.entries()[-1].key)
    assert cut.stats is not None
    assert cut.stats["n_emitted"] == len(cut.token_ids or ()) > 0
    assert controller.continue_reply()
    finished(controller, clock)
    whole = controller.history.message(cut.id)
    assert whole.stats is not None
    assert whole.stats["n_emitted"] == len(whole.token_ids or ()) > len(cut.token_ids or ())


def test_a_reply_whose_beginning_nobody_counted_has_no_counts(tmp_path: Path, clock: Clock) -> None:
    controller, _ = stopped(tmp_path, clock)
    cut = controller.history.message(controller.entries()[-1].key)
    controller.edit(cut.id, f"{cut.content} and my own words")
    finished(controller, clock)
    assert controller.history.message(controller.entries()[-1].key).stats is None


def test_a_reply_that_a_killed_kvchat_left_goes_on_after_the_next_start(
    tmp_path: Path, clock: Clock
) -> None:
    controller, _ = loaded(tmp_path, clock, Script(replies=(FIRST,), tps=10))
    controller.send("count")
    for _ in range(8):
        clock.now += 0.1
        controller.poll()
    release_locks(controller)
    controller.history.store.close()  # the reply never ends: nothing more is written

    again, client = make_controller(tmp_path, Script(replies=(SECOND,)), clock=clock)
    again.load(CONFIGURATION)
    again.poll()
    [chat] = again.history.store.list_chats()
    again.open_chat(chat.id)
    [_, cut] = again.entries()
    assert cut.content
    assert again.continue_reply()
    assert spelled(client.requests[0].continues) == cut.content
    finished(again, clock)
    assert again.entries()[-1].content == cut.content + SECOND


def test_an_engine_that_refuses_to_go_on_leaves_the_reply_as_it_was(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = stopped(tmp_path, clock)
    before = controller.history.message(controller.entries()[-1].key)
    client.script = Script(refuses=("Decoding failed", "no"))
    controller.continue_reply()
    controller.poll()
    after = controller.history.message(before.id)
    assert (after.content, after.token_ids) == (before.content, before.token_ids)
    assert (after.finish_reason, after.seed) == (before.finish_reason, before.seed)
    assert after.stats == before.stats
    assert controller.history.head_id == before.id


def test_a_reply_of_another_vocabulary_goes_on_behind_its_text(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = stopped(tmp_path, clock)
    assert controller.loaded is not None
    cut = controller.history.message(controller.entries()[-1].key)
    controller.loaded = replace(controller.loaded, vocabulary_id="other")
    assert controller.continue_reply()
    request = client.requests[-1]
    assert (request.continues, request.continues_text) == ((), cut.content)
    client.script = Script(refuses=("Decoding failed", "no"))
    finished(controller, clock)
    whole = controller.history.message(cut.id)
    assert whole.content == cut.content + SECOND
    assert whole.token_ids


def test_a_question_that_was_never_answered_is_answered(tmp_path: Path, clock: Clock) -> None:
    with ChatStore(tmp_path / "chats.db") as store:
        chat = add_chat(store, "open")
        add_message(store, chat.id, None, "user", "anyone?")
    controller, client = loaded(tmp_path, clock)
    controller.open_chat(chat.id)
    assert "sends the question" in controller.entries()[-1].ending
    assert controller.continue_reply()
    controller.poll()
    assert client.requests[0].messages[0].content == "anyone?"
    assert contents(controller)[-1] == (Speaker.MODEL, "Hello there.")


def test_a_reply_without_text_is_made_anew_in_its_place(tmp_path: Path, clock: Clock) -> None:
    controller, client = stopped(tmp_path, clock)
    cut = controller.history.message(controller.entries()[-1].key)
    controller.history.store.finish_message(replace(cut, content="", vocabulary_id="other"))
    controller.refresh()
    assert controller.continue_reply()
    assert client.requests[-1].continues == ()
    finished(controller, clock)
    assert controller.entries()[-1].key == cut.id
    assert controller.entries()[-1].content == SECOND


def test_a_chat_is_brought_into_memory_when_it_is_opened_and_when_its_model_is_loaded(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = stopped(tmp_path, clock)
    chat = controller.history.chat
    assert chat is not None
    controller.new_chat()
    client.prefetched.clear()
    controller.open_chat(chat.id)
    [messages] = client.prefetched
    assert [m.role for m in messages] == ["user", "assistant"]
    assert messages[1].token_ids
    controller.load(CONFIGURATION)
    controller.poll()
    assert client.prefetched == [messages, messages]
