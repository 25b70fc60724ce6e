from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.context import INSTRUCTION
from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.chat.entries import DIVIDER_KEY, SUMMARY_BEGINS, Speaker
from engine.configuration import SamplingSettings
from engine.events import FinishReason
from tests.app.chat.conftest import Clock, contents, loaded
from tests.support.fakes_client import CONFIGURATION, FULL, Script, ScriptedClient

SMALL = replace(CONFIGURATION, n_ctx=512)


def chat_of(tmp_path: Path, clock: Clock, n_turns: int = 6) -> tuple[Conversation, ScriptedClient]:
    """A chat of so many turns of about 100 tokens in a context of 512."""
    controller, client = loaded(tmp_path, clock, Script(replies=("reply " * 40,)))
    controller.load(SMALL)
    controller.poll()
    controller.history.change_settings(system_prompt="Be kind.", sampling=SamplingSettings())
    for i in range(n_turns):
        controller.send(f"question {i} " + "please " * 15)
        controller.poll()
    return controller, client


def refused(tmp_path: Path, clock: Clock) -> tuple[Conversation, ScriptedClient, ContextFull]:
    controller, client = chat_of(tmp_path, clock)
    client.script = FULL
    controller.send("one more")
    change = controller.poll()
    assert change.context_full == "the prompt has 900 tokens, the context has 512"
    assert change.returned_text is None
    client.script = Script(replies=("and here it is",))
    return controller, client, ContextFull(controller)


def test_a_full_context_drops_nothing_by_itself(tmp_path: Path, clock: Clock) -> None:
    controller, _, maker = refused(tmp_path, clock)
    assert controller.history.n_hidden == 0
    assert contents(controller)[-2][1] == "one more"
    assert "{composer-send} shows ways" in controller.entries()[-1].ending
    assert maker.is_needed()
    choices = maker.options()
    assert 0 < choices.n_dropped < 12
    assert choices.can_branch
    assert choices.can_take_back


def test_shifting_hides_the_oldest_turns_from_the_model_alone(tmp_path: Path, clock: Clock) -> None:
    controller, client, maker = refused(tmp_path, clock)
    n_dropped = maker.options().n_dropped
    maker.shift()
    controller.poll()
    request = client.requests[-1]
    assert request.is_trimmed
    assert [m.role for m in request.messages[:2]] == ["system", "user"]
    assert len(request.messages) == 1 + 13 - n_dropped
    assert request.messages[-1].content == "one more"
    entries = controller.entries()
    assert [e.key for e in entries].index(DIVIDER_KEY) == n_dropped
    assert entries[0].content.startswith("question 0"), "the user still sees it"
    assert entries[-1].content == "and here it is"
    controller.send("next")
    controller.poll()
    assert "question 0" not in "".join(m.content for m in client.requests[-1].messages)


def test_a_summary_of_the_model_stands_for_what_was_dropped(tmp_path: Path, clock: Clock) -> None:
    controller, client, maker = refused(tmp_path, clock)
    client.play(Script(replies=("They asked six times.", "and here it is")))
    n_dropped = maker.options().n_dropped
    maker.summarise()
    asked = client.requests[-1]
    assert asked.messages[-1].content == INSTRUCTION
    assert len(asked.messages) == 1 + n_dropped + 1
    assert asked.owner == f"chat:{controller.history.chat.id}"  # type: ignore[union-attr]
    assert not controller.can_ask
    assert "stops the summary" in "".join(entry.content for entry in controller.entries())
    for _ in range(3):
        controller.poll()
    request = client.requests[-1]
    assert request.messages[0].content == f"Be kind.\n\n{SUMMARY_BEGINS}\nThey asked six times."
    assert not request.is_trimmed
    [divider] = [e for e in controller.entries() if e.speaker is Speaker.DIVIDER]
    assert divider.content == "They asked six times."
    assert controller.entries()[-1].content == "and here it is"
    assert "stops the summary" not in "".join(entry.content for entry in controller.entries())
    assert controller.can_ask


@pytest.mark.parametrize("is_open_elsewhere", [True, False])
def test_a_summary_is_written_to_a_chat_that_was_left_only_under_its_lock(
    is_open_elsewhere: bool, tmp_path: Path, clock: Clock
) -> None:
    controller, client, maker = refused(tmp_path, clock)
    client.play(Script(replies=("They asked six times.", "and here it is")))
    maker.summarise()
    chat = controller.history.chat
    assert chat is not None
    controller.new_chat()
    store = controller.history.store
    other = store.lock_chat(chat.id) if is_open_elsewhere else None
    told = [notice.message for _ in range(3) for notice in controller.poll().notices]
    assert (store.chat(chat.id).summary is None) is is_open_elsewhere
    assert any("another kvchat process" in text for text in told) is is_open_elsewhere
    if other is not None:
        other.close()


def test_a_summary_that_does_not_fit_leaves_the_chat_as_it_was(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client, maker = refused(tmp_path, clock)
    client.script = FULL
    maker.summarise()
    [notice] = controller.poll().notices
    assert notice.message.startswith("No summary: The context is full")
    assert maker.is_needed()
    assert controller.can_ask


def test_a_summary_that_is_stopped_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    controller, client, maker = refused(tmp_path, clock)
    client.script = Script(replies=("word " * 99,), tps=1)
    maker.summarise()
    controller.poll()
    assert controller.stop()
    clock.now += 5
    change = controller.poll()
    assert "generation was stopped" in change.notices[-1].message
    assert controller.history.n_hidden == 0
    assert maker.is_needed()
    assert controller.can_ask


def test_a_summary_is_stopped_in_its_own_chat_alone(tmp_path: Path, clock: Clock) -> None:
    controller, client, maker = refused(tmp_path, clock)
    client.script = Script(replies=("word " * 99,), tps=1)
    summarised = controller.history.chat
    assert summarised is not None
    maker.summarise()
    controller.new_chat()
    assert not controller.stop()
    controller.poll()
    assert controller.is_leased
    controller.open_chat(summarised.id)
    assert controller.stop()


def test_loading_a_model_ends_a_summary_and_what_was_said_of_it(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client, maker = refused(tmp_path, clock)
    client.script = Script(replies=("summary " * 50,), tps=5)
    maker.summarise()
    assert any("stops the summary" in text for _, text in contents(controller))
    controller.load(SMALL)
    change = controller.poll()
    assert not any("stops the summary" in text for _, text in contents(controller))
    assert "another model was loaded in the meantime" in change.notices[0].message
    assert not controller.is_leased


def test_a_later_summary_takes_the_earlier_one_in(tmp_path: Path, clock: Clock) -> None:
    controller, client, maker = refused(tmp_path, clock)
    client.play(Script(replies=("First summary.", "answer " * 40)))
    maker.summarise()
    for _ in range(3):
        controller.poll()
    for _ in range(3):
        controller.send("more " * 20)
        controller.poll()
    maker.summarise()
    asked = client.requests[-1]
    assert "First summary." in asked.messages[0].content
    assert "question 0" not in "".join(m.content for m in asked.messages)


def test_a_question_that_no_context_holds_goes_back_and_no_turn_is_offered_for_it(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = chat_of(tmp_path, clock)
    client.script = FULL
    too_long = "one more " * 512
    controller.send(too_long)
    change = controller.poll()
    assert change.context_full is None
    assert change.returned_text == too_long
    assert contents(controller)[-2][1] == "reply " * 40
    assert "The context is full" in contents(controller)[-1][1]


def test_a_reply_that_fills_the_context_goes_on_behind_what_was_dropped(
    tmp_path: Path, clock: Clock
) -> None:
    controller, client = chat_of(tmp_path, clock)
    client.play(Script(replies=("first half", " second half"), fills_after=2))
    controller.send("tell me")
    assert controller.poll().context_full == "all 8,192 cells of the KV cache are used"
    cut = controller.entries()[-1]
    assert controller.history.message(cut.key).finish_reason == FinishReason.CONTEXT
    maker = ContextFull(controller)
    assert not maker.options().can_take_back
    client.script = Script(replies=(" second half",))
    maker.shift()
    controller.poll()
    assert client.requests[-1].continues
    assert client.requests[-1].is_trimmed
    whole = controller.entries()[-1]
    assert (whole.key, whole.content) == (cut.key, cut.content + " second half")


def test_a_larger_context_needs_no_room(tmp_path: Path, clock: Clock) -> None:
    controller, _, maker = refused(tmp_path, clock)
    controller.load(CONFIGURATION)
    controller.poll()
    assert not maker.is_needed()
    assert controller.continue_reply()
    controller.poll()
    assert controller.entries()[-1].content == "and here it is"
