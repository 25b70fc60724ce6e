from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from app.chat.entries import CONTINUES
from app.render.lines import plain
from app.screens.chat import ChatScreen
from app.widgets.bars import TitleBar
from engine.events import FinishReason, WorkerStopped
from tests.support.chats import add_chat, add_message
from tests.support.fakes_app import NARROW, WIDE, answered, ask, make_app, opened, ready, wait_until
from tests.support.fakes_client import CONFIGURATION, Script, _finished, loaded

LONG = "word " * 200


async def test_enter_continues_a_stopped_reply(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=(LONG, "theend."), tps=5)) as (
        _,
        client,
        pilot,
        screen,
    ):
        await ask(pilot, screen, "go")
        await wait_until(pilot, lambda: "word word" in screen.transcript.text)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        await pilot.pause()
        assert screen.conversation.entries()[-1].ending.endswith(CONTINUES)
        await pilot.press("enter")
        client.hurry()
        await wait_until(pilot, lambda: "theend." in screen.transcript.text)
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        assert len(screen.conversation.entries()) == 2
        assert client.requests[1].continues
        await pilot.press("enter")
        await pilot.pause()
        assert len(client.requests) == 2, "a whole reply has nothing to go on with"


async def test_a_question_waits_for_the_reply_in_another_chat(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=(LONG, "secondreply"), tps=5)) as (
        _,
        client,
        pilot,
        screen,
    ):
        await ask(pilot, screen, "first")
        await wait_until(pilot, lambda: "word" in screen.transcript.text)
        await pilot.press("ctrl+n")
        status = screen.query_one(TitleBar)
        await wait_until(pilot, lambda: "answering “first”" in plain(status.lines[0]))
        await ask(pilot, screen, "second")
        assert "sent when “first” is answered" in str(screen.composer.border_title)
        assert "second" in plain(screen.beside.lines[0])
        assert screen.composer.text == ""
        assert len(client.requests) == 1
        client.hurry()
        await wait_until(pilot, lambda: len(client.requests) == 2)
        await wait_until(pilot, lambda: "secondreply" in screen.transcript.text)
        assert screen.composer.text == ""
        assert screen.composer.border_title == ""
        assert client.n_stops == 0


async def test_esc_unqueues_a_question_of_this_chat(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Script(replies=(LONG,), tps=20)) as (app, client, pilot, screen):
        await ask(pilot, screen, "first")
        await pilot.press("ctrl+n")
        await ask(pilot, screen, "second")
        await pilot.press("escape")
        assert screen.composer.border_title == ""
        assert screen.composer.text == "second"
        await pilot.press("escape")
        assert any("A reply is running" in notice.message for notice in app._notifications)
        assert client.n_stops == 0
        assert screen.conversation.is_replying


async def test_another_chat_can_be_read_during_a_reply(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=("a reply to read",))) as (app, _, pilot, screen):
        await answered(pilot, screen, "reading")
        reading = screen.conversation.history.chat
        assert reading is not None
        await pilot.press("ctrl+n")
        app.conversation.client.script = Script(replies=(LONG,), tps=60)  # type: ignore[attr-defined]
        await ask(pilot, screen, "writing")
        writing = screen.conversation.history.chat
        assert writing is not None
        screen.open_chat(reading.id)
        await wait_until(pilot, lambda: "a reply to read" in screen.transcript.text)
        assert screen.conversation.is_replying
        await pilot.press(*"me", "enter", *"too", "enter")
        await pilot.press("escape", "escape")
        screen.open_chat(writing.id)
        await wait_until(pilot, lambda: "word word" in screen.transcript.text)
        n = screen.transcript.text.count("word")
        await wait_until(pilot, lambda: screen.transcript.text.count("word") > n + 5)


async def test_enter_during_a_load_counts_afterwards(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=("theend.",)))
    store = app.conversation.history.store
    chat = add_chat(store, "cut")
    add_message(store, chat.id, None, "user", "anyone?")
    app.conversation.open_chat(chat.id)
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        app.conversation.meters.start_load(CONFIGURATION)
        await pilot.press("enter")
        assert "continued when the model is loaded" in str(screen.composer.border_title)
        await pilot.press("escape")
        assert screen.composer.border_title == ""
        await pilot.press("enter")
        assert client.requests == []
        client.emit(loaded(CONFIGURATION))
        await wait_until(pilot, lambda: "theend." in screen.transcript.text)
        assert screen.composer.border_title == ""


async def test_every_chat_has_a_text_and_an_edit_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, client, pilot, screen):
        await answered(pilot, screen, "first")
        first = screen.conversation.history.chat
        assert first is not None
        await pilot.press(*"thought", "shift+tab", "e")
        assert screen.composer.text == "first"
        await pilot.press("ctrl+n")
        assert screen.composer.text == ""
        assert screen.composer.border_title == ""
        await pilot.press(*"other")
        screen.open_chat(first.id)
        assert screen.composer.text == "first"
        assert "editing" in str(screen.composer.border_title)
        await pilot.press("s", "enter")
        await wait_until(pilot, lambda: len(client.requests) == 2)
        assert [m.content for m in client.requests[-1].messages] == ["firsts"]
        assert screen.composer.text == "thought", "what stood there before the edit"
        await pilot.press("ctrl+n")
        assert screen.composer.text == "other"


async def asked(pilot: Pilot[None], *texts: str) -> ChatScreen:
    """The chat in which the first text is answered slowly and the others wait."""
    screen = await ready(pilot)
    for text in texts:
        await ask(pilot, screen, text)
    return screen


async def test_another_reply_is_refused_with_the_reason_while_one_runs(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG,), tps=5))
    async with app.run_test(size=WIDE) as pilot:
        await asked(pilot, "first")
        await pilot.press("ctrl+g")
        assert any("when this reply is done" in notice.message for notice in app._notifications)
    assert len(client.requests) == 1


async def test_a_text_sent_during_a_reply_is_queued(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG, "more", "last"), tps=1))
    async with app.run_test(size=NARROW) as pilot:
        screen = await asked(pilot, "first", "second", "third")
        assert len(client.requests) == 1
        title = str(screen.composer.border_title)
        assert title == "2 messages queued; the last is sent when this reply is done"
        assert "esc or up unqueues the last message" in str(screen.composer.border_subtitle)
        client.hurry()
        await wait_until(pilot, lambda: len(client.requests) == 3)
        asked_last = [message.content for message in client.requests[-1].messages]
        assert asked_last[::2] == ["first", "second", "third"]
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        assert screen.composer.border_title == ""


async def test_esc_unqueues_then_stops_then_cancels_the_edit(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG,), tps=20))
    async with app.run_test(size=WIDE) as pilot:
        screen = await asked(pilot, "first", "second", "third")
        composer = screen.composer
        await pilot.press("escape")
        assert composer.text == "third"
        assert "unqueues the message" in str(composer.border_subtitle)
        await pilot.press("escape")
        assert composer.text == "second\n\nthird"
        assert "esc stops the reply" in str(composer.border_subtitle)
        screen.action_edit()
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        assert client.n_stops == 1
        assert composer.text == "first"
        await wait_until(pilot, lambda: "esc cancels the edit" in str(composer.border_subtitle))
        await pilot.press("escape")
        assert composer.text == "second\n\nthird"
        assert len(client.requests) == 1


async def test_a_queued_text_is_sent_in_a_hidden_chat(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG, "more"), tps=5))
    async with app.run_test(size=WIDE) as pilot:
        screen = await asked(pilot, "first", "second")
        first = screen.conversation.history.chat
        assert first is not None
        await pilot.press("ctrl+n")
        assert screen.composer.border_title == ""
        client.hurry()
        await wait_until(pilot, lambda: len(client.requests) == 2)
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        assert screen.conversation.history.chat is None, "the new chat is still the shown one"
        screen.open_chat(first.id)
        await wait_until(pilot, lambda: "more" in screen.transcript.text)


async def test_queued_texts_return_when_the_engine_stops(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG,), tps=5))
    async with app.run_test(size=WIDE) as pilot:
        screen = await asked(pilot, "first", "second", "third")
        client.emit(WorkerStopped("The engine stopped", "It was killed by signal 9.", -9))
        await wait_until(pilot, lambda: screen.composer.text == "second\n\nthird")
        assert screen.composer.border_title == ""
        await wait_until(
            pilot,
            lambda: any("ctrl+r restarts it" in notice.message for notice in app._notifications),
        )
        assert len(client.requests) == 1


async def test_text_after_a_queued_question_belongs_to_its_chat(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Script(replies=("word " * 60, "two"), tps=40)) as (
        app,
        _,
        pilot,
        screen,
    ):
        conversation = app.conversation
        await ask(pilot, screen, "first")
        await wait_until(pilot, lambda: conversation.is_replying)
        first = conversation.history.chat
        assert first is not None
        await pilot.press("ctrl+n")
        await ask(pilot, screen, "second")
        screen.composer.insert("a third")
        await pilot.pause()
        screen.open_chat(first.id)
        store = conversation.history.store
        await wait_until(pilot, lambda: store.count_chats() == 2 and not conversation.is_replying)
        [begun] = [chat for chat in store.list_chats() if chat.id != first.id]
        screen.open_chat(begun.id)
        await wait_until(pilot, lambda: screen.composer.text == "a third")
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: conversation.history.chat is None)
        await pilot.pause()
        assert screen.composer.text == ""


async def test_unsent_texts_survive_a_restart(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, Script(replies=(LONG,), tps=20))
    async with app.run_test(size=WIDE) as pilot:
        screen = await asked(pilot, "first", "second")
        await pilot.press(*"third")
        shown = screen.conversation.history.chat
        assert shown is not None
        await pilot.press("ctrl+n", *"new")
    app.conversation.history.store.close()
    again, _ = make_app(tmp_path)
    async with again.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        assert screen.composer.text == "new"
        screen.open_chat(shown.id)
        assert screen.composer.text == "second\n\nthird"


async def test_text_typed_right_after_enter_is_not_lost(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=(LONG,), tps=5)) as (_, client, pilot, screen):
        screen.composer.put("first")
        for key in ("enter", *"next"):
            screen.composer.post_message(events.Key(key, "\r" if key == "enter" else key))
        await wait_until(pilot, lambda: client.requests)
        await wait_until(pilot, lambda: screen.composer.text == "next")
        assert client.requests[0].messages[0].content == "first"


async def test_a_text_goes_to_the_chat_it_was_typed_in(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Script(replies=("one.", "two."))) as (app, client, pilot, screen):
        await answered(pilot, screen, "first")
        screen.composer.put("second")
        for key, character in (("enter", "\r"), ("ctrl+n", None)):
            app.post_message(events.Key(key, character))
        await wait_until(pilot, lambda: len(client.requests) == 2)
        asked = [message.content for message in client.requests[1].messages]
        assert asked == ["first", "one.", "second"]
        assert screen.conversation.history.chat is None, "and the new chat is shown"
        assert screen.composer.text == ""


async def test_queued_texts_return_when_the_context_is_full(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG,), tps=5))
    async with app.run_test(size=WIDE) as pilot:
        screen = await asked(pilot, "first", "second")
        client.emit(_finished([], FinishReason.CONTEXT, 0, 0, 0))
        await wait_until(pilot, lambda: screen.composer.text == "second")
        assert len(client.requests) == 1


@pytest.mark.slow
async def test_a_queued_text_of_a_deleted_chat_returns(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=("whole", LONG, "more"), tps=10)) as (
        _,
        client,
        pilot,
        screen,
    ):
        await answered(pilot, screen, "old")
        old = screen.conversation.history.chat
        assert old is not None
        await pilot.press("ctrl+n")
        await ask(pilot, screen, "first")
        screen.open_chat(old.id)
        await ask(pilot, screen, "second")
        await pilot.press("ctrl+n")
        screen.conversation.delete_chat(old.id)
        screen.conversation.stop()
        await wait_until(pilot, lambda: screen.composer.text == "second")
        assert len(client.requests) == 2


async def test_clearing_and_pasting_can_be_undone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        composer = screen.composer
        app.post_message(events.Paste("some words in a line\n" * 5000))
        await wait_until(pilot, lambda: "25,000 tokens" in str(composer.border_subtitle))
        assert "but the context holds 8,192" in str(composer.border_subtitle)
        await pilot.press("ctrl+c")
        assert composer.text == ""
        await pilot.press("ctrl+z")
        assert len(composer.written) > 100_000
        await pilot.press("ctrl+a", "ctrl+a")
        assert composer.selected_text == composer.text
        await pilot.press("x")
        assert composer.text == "x"
        await wait_until(pilot, lambda: composer.border_subtitle == "")
        await pilot.press("ctrl+z", "ctrl+z")
        assert composer.text == "", "the paste is taken back"
