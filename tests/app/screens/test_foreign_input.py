"""Names, paths and sizes that nobody would choose end no screen and lose nothing."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from app.application import KvchatApp
from app.chat.attachments import file_names
from app.paths import current_folder, model_folders, typed_path
from app.screens.chat_list import ChatTarget
from app.screens.chats import ChatsScreen
from app.screens.dialogs import AskLine, HelpScreen
from app.screens.downloads import FirstRunScreen
from app.widgets.select_list import SelectList
from tests.app.screens.test_call_if_open import Gate
from tests.support.fakes_app import (
    NARROW,
    WIDE,
    answered,
    make_app,
    make_conversation,
    opened,
    ready,
    services,
    wait_until,
)
from tests.support.fakes_client import CONFIGURATION, Script

NO_PATHS = ("~nobody-is-called-so/x", "x" * 300, "no/such/folder/x.md", "a\0b", "~")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def latin_name(folder: Path) -> None:
    """A file whose name is no UTF-8; skipped where the file system refuses it."""
    try:
        Path(os.fsdecode(os.fsencode(folder) + b"/na\xff.txt")).write_text("hello")
    except OSError:
        pytest.skip("this file system has no such names")


def test_a_name_that_is_no_text_is_not_offered(here: Path) -> None:
    latin_name(here)
    (here / "näme.txt").write_text("hello")
    assert file_names(here) == ["näme.txt"]


async def test_an_impossible_path_is_refused(tmp_path: Path, here: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await answered(pilot, await ready(pilot), "q")
        await pilot.press("ctrl+l")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatsScreen))
        await wait_until(pilot, lambda: app.screen.query_one(SelectList).rows)
        for name in NO_PATHS:
            app.clear_notifications()
            await pilot.press("x")
            await wait_until(pilot, lambda: isinstance(app.screen, AskLine))
            app.screen.query_one(Input).value = name
            await pilot.press("enter")
            await wait_until(pilot, lambda: app._notifications)
            notices = " ".join(notice.message for notice in app._notifications)
            assert re.search("cannot be written|does not exist|Written", notices), name


def test_paths_are_found_where_folder_and_home_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert current_folder() == Path.home()
    assert model_folders([Path("relative")])
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["nobody"])
    assert typed_path("~/x") == Path("~/x")
    assert model_folders([Path("/models")])


async def test_a_model_file_without_utf_8_name_answers(
    tmp_path: Path,
) -> None:
    conversation, _ = make_conversation(tmp_path)
    configuration = replace(CONFIGURATION, model_path=tmp_path / "m\udcff.gguf")
    app = KvchatApp(conversation, services(tmp_path), configuration=configuration)
    async with app.run_test(size=WIDE) as pilot:
        await answered(pilot, await ready(pilot), "a question")
        history = conversation.history
        texts = [m.content for m in history.store.path_to(history.head_id or 0)]
        assert texts == ["a question", "Hello there."]
        assert history.chat is not None
        assert (history.chat.model_path or "").endswith(r"m\udcff.gguf")


async def on_the_second_tab(pilot: Pilot[None], action: Callable[[], object]) -> None:
    await pilot.press("f9")
    await pilot.pause()
    action()
    await pilot.pause()


async def test_a_message_is_gone_to_from_another_tab_of_a_narrow_screen(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=("the zebra runs",)), size=NARROW) as (
        _,
        _,
        pilot,
        chat,
    ):
        await answered(pilot, chat, "first question")
        history = chat.conversation.history
        assert history.chat is not None
        first, reply = history.chat.id, history.head_id
        await pilot.press("ctrl+n")
        await on_the_second_tab(pilot, lambda: chat.open_at(ChatTarget(first, reply, "zebra")))
        await wait_until(pilot, lambda: chat.transcript.size.width > 0)
        await wait_until(pilot, lambda: chat.transcript.selected == reply)
        await wait_until(pilot, lambda: "zebra" in chat.transcript.text)
        assert chat.transcript.has_focus


async def test_help_over_an_install_is_closed_with_it(tmp_path: Path) -> None:
    gate = Gate()
    app, client = make_app(tmp_path, has_model=False)
    app.services = replace(app.services, install_starter=gate.install)
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("i")
        await wait_until(pilot, gate.is_reached.is_set)
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        gate.go_on.set()
        await wait_until(pilot, lambda: client.loads)
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize("size", [(2, 2), (59, 40)])
async def test_text_typed_on_a_tiny_screen_is_sent(size: tuple[int, int], tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=("the answer",)), size=size) as (_, _, pilot, chat):
        await pilot.press(*"hi there")
        assert chat.composer.text == "hi there"
        await pilot.press("enter")
        await wait_until(pilot, lambda: chat.conversation.history.head_id is not None)
        await wait_until(pilot, lambda: not chat.conversation.is_replying)
        await pilot.press(*"text")
        await pilot.resize_terminal(*WIDE)
        await pilot.pause()
        assert chat.composer.text == "text"
        assert "the answer" in chat.transcript.text
        assert chat.composer.has_focus
