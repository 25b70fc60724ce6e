from pathlib import Path

from app.render.lines import plain
from app.widgets.status_bar import StatusBar
from engine.configuration import SamplingSettings
from tests.fakes_app import WIDE, answered, ask, make_app, ready, wait_until
from tests.fakes_client import CONFIGURATION, Script, loaded

LONG = "word " * 200


async def test_enter_in_an_empty_composer_goes_on_with_a_stopped_reply(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG, "theend."), tps=60))
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        await ask(pilot, screen, "go")
        await wait_until(pilot, lambda: "word word" in screen.transcript.text)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.controller.is_replying)
        await pilot.pause()
        assert screen.controller.entries()[-1].note.endswith("enter goes on")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "theend." in screen.transcript.text)
        await wait_until(pilot, lambda: not screen.controller.is_replying)
        assert len(screen.controller.entries()) == 2
        assert client.requests[1].continues
        await pilot.press("enter")
        await pilot.pause()
        assert len(client.requests) == 2, "a whole reply has nothing to go on with"


async def test_a_question_waits_for_the_reply_in_another_chat(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG, "secondreply"), tps=80))
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        await ask(pilot, screen, "first")
        await wait_until(pilot, lambda: "word" in screen.transcript.text)
        await pilot.press("ctrl+n")
        status = screen.query_one(StatusBar)
        await wait_until(pilot, lambda: "answering “first”" in plain(status.lines[0]))
        await ask(pilot, screen, "second")
        assert "sent when “first” is answered" in str(screen.composer.border_title)
        assert screen.composer.text == "second"
        assert len(client.requests) == 1
        await wait_until(pilot, lambda: len(client.requests) == 2)
        await wait_until(pilot, lambda: "secondreply" in screen.transcript.text)
        assert screen.composer.text == ""
        assert screen.composer.border_title is None
        assert client.n_stops == 0


async def test_esc_takes_a_waiting_question_back_and_leaves_the_other_chat_alone(
    tmp_path: Path,
) -> None:
    app, client = make_app(tmp_path, Script(replies=(LONG,), tps=20))
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        await ask(pilot, screen, "first")
        await pilot.press("ctrl+n")
        await ask(pilot, screen, "second")
        await pilot.press("escape")
        assert screen.composer.border_title is None
        assert screen.composer.text == "second"
        await pilot.press("escape")
        assert any("is being answered" in notice.message for notice in app._notifications)
        assert client.n_stops == 0
        assert screen.controller.is_replying


async def test_a_chat_is_read_and_gone_back_from_while_another_is_answered(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, Script(replies=("a reply to read",)))
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        await answered(pilot, screen, "reading")
        reading = screen.controller.history.chat
        assert reading is not None
        await pilot.press("ctrl+n")
        app.controller.client.script = Script(replies=(LONG,), tps=60)  # type: ignore[attr-defined]
        await ask(pilot, screen, "writing")
        writing = screen.controller.history.chat
        assert writing is not None
        screen.open_chat(reading.id)
        await wait_until(pilot, lambda: "a reply to read" in screen.transcript.text)
        assert screen.controller.is_replying
        screen.open_chat(writing.id)
        await wait_until(pilot, lambda: "word word" in screen.transcript.text)
        n = screen.transcript.text.count("word")
        await wait_until(pilot, lambda: screen.transcript.text.count("word") > n + 5)


async def test_enter_while_the_model_loads_is_kept_until_it_is_there(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(replies=("theend.",)))
    store = app.controller.history.store
    chat = store.create_chat(
        title="cut", model_path=None, system_prompt="", sampling=SamplingSettings()
    )
    store.add_message(chat.id, parent_id=None, role="user", content="anyone?")
    app.controller.open_chat(chat.id)
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        app.controller.meters.loading(CONFIGURATION)
        await pilot.press("enter")
        assert "goes on when the model is loaded" in str(screen.composer.border_title)
        await pilot.press("escape")
        assert screen.composer.border_title is None
        await pilot.press("enter")
        assert client.requests == []
        client.emit(loaded(CONFIGURATION))
        await wait_until(pilot, lambda: "theend." in screen.transcript.text)
        assert screen.composer.border_title is None


async def test_an_edit_is_forgotten_with_its_chat(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        for question in ("first", "second"):
            await answered(pilot, screen, question)
        await pilot.press("shift+tab", "e")
        assert screen.composer.text == "second"
        await pilot.press("ctrl+n")
        assert screen.composer.border_title is None
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(client.requests) == 3)
        await wait_until(pilot, lambda: not screen.controller.is_replying)
        assert [m.content for m in client.requests[-1].messages] == ["second"]
