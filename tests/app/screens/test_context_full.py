from pathlib import Path

import pytest
from textual.widgets import Static

from app.application import KvchatApp
from app.chat.context_full import ContextFullOptions
from app.screens.chat import ChatScreen
from app.screens.dialogs import ContextFullScreen
from app.widgets.select_list import SelectList
from tests.support.fakes_app import WIDE, answered, ask, make_app, opened, ready, wait_until
from tests.support.fakes_client import FULL, Script, ScriptedClient


async def filled(app: KvchatApp, client: ScriptedClient, pilot: object) -> ChatScreen:
    """The dialog over a chat of two turns whose third question is too much."""
    screen = await ready(pilot)  # type: ignore[arg-type]
    for question in ("first", "second"):
        await answered(pilot, screen, question)  # type: ignore[arg-type]
    client.script = FULL
    await ask(pilot, screen, "third")  # type: ignore[arg-type]
    await wait_until(pilot, lambda: isinstance(app.screen, ContextFullScreen))  # type: ignore[arg-type]
    client.play(Script(replies=("there is space",)))
    return screen


def test_a_dialog_that_the_app_ends_before_it_is_composed_is_no_error() -> None:
    choices = ContextFullOptions(2, can_branch=True, can_take_back=True)
    ContextFullScreen("why", choices).on_mount()


async def test_hints_name_the_keys_that_the_settings_give(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[keys]\nreply-stop = "f8"\napp-help = "f2"\n')
    app, _ = make_app(tmp_path, Script(replies=("word " * 500,), tps=10))
    choices = ContextFullOptions(2, can_branch=True, can_take_back=True, can_grow=True)
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        await app.push_screen(ContextFullScreen("why", choices))
        hint = str(app.screen.query_one(".hint", Static).render())
        assert hint == "enter chooses · /plan plans a larger context"
        await pilot.press("escape")
        await ask(pilot, screen, "more")
        await wait_until(pilot, lambda: screen.composer.border_subtitle == "f8 stops the reply")
        await pilot.press("f8")
        await wait_until(pilot, lambda: not screen.conversation.is_replying)


async def test_turns_are_dropped_when_chosen_and_seen_again_with_u(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await filled(app, client, pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "there is space" in screen.transcript.text)
        assert "the model no longer sees the messages above (u: undo)" in screen.transcript.text
        assert client.requests[-1].is_trimmed
        screen.transcript.focus()
        await pilot.press("u")
        await wait_until(pilot, lambda: "no longer sees" not in screen.transcript.text)


@pytest.mark.parametrize(("key", "title", "n_entries"), [("s", "first", 7), ("n", "third", 2)])
async def test_a_summary_or_a_new_chat_makes_free_space(
    key: str, title: str, n_entries: int, tmp_path: Path
) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await filled(app, client, pilot)
        client.play(Script(replies=("They greeted.", "there is space")[key == "n" :]))
        await pilot.press(key)
        await wait_until(pilot, lambda: "there is space" in screen.transcript.text)
        assert ("They greeted." in screen.transcript.text) is (key == "s")
        assert screen.transcript.frame_title == title
        assert screen.composer.text == ""
        assert len(screen.conversation.entries()) == n_entries


async def test_esc_gives_the_question_back(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await filled(app, client, pilot)
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.composer.text == "third")
        assert len(screen.conversation.entries()) == 4


@pytest.mark.parametrize("key", ["d", "s"])
async def test_what_cannot_be_done_is_not_done(tmp_path: Path, key: str) -> None:
    async with opened(tmp_path, Script(replies=("word " * 400,), fills_after=300)) as (
        app,
        client,
        pilot,
        screen,
    ):
        await ask(pilot, screen, "only one question")
        await wait_until(pilot, lambda: isinstance(app.screen, ContextFullScreen))
        n_requests = len(client.requests)
        await pilot.press(key)
        assert isinstance(app.screen, ContextFullScreen)
        choices = app.screen.query_one(SelectList)
        assert [row.is_enabled for row in choices.rows] == [False, False, False, True]
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen))
        assert len(client.requests) == n_requests
        assert screen.conversation.can_ask
