"""The composer on the screen: pastes, files, earlier questions, commands, and notices."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Static

from app.chat.attachments import folded
from app.render.lines import plain
from app.screens.chat import ChatScreen
from app.screens.dialogs import AskLine
from app.widgets.bars import TitleBar
from engine.images import images_in
from tests.support import fakes_client
from tests.support.fakes_app import NARROW, WIDE, answered, ask, make_app, opened, ready, wait_until
from tests.support.fakes_client import Script
from tests.support.filled_projectors import png

LONG = "word " * 200
PASTE = "some words in a line\n" * 30


def beside(screen: ChatScreen) -> str:
    return "\n".join(plain(line) for line in screen.beside.lines)


def listed(screen: ChatScreen) -> str:
    assert screen.choices.display
    return "\n".join(plain(line) for line in screen.choices.lines)


def status(screen: ChatScreen) -> str:
    return plain(screen.query_one(TitleBar).lines[0])


async def paste(pilot: Pilot[None], screen: ChatScreen, text: str) -> None:
    screen.composer.focus()
    pilot.app.post_message(events.Paste(text))
    await pilot.pause()


async def test_lines_that_end_as_a_terminal_ends_them_are_lines(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, _, pilot, screen):
        await paste(pilot, screen, "one\rtwo")
        assert screen.composer.text == "one\ntwo"
        await pilot.press("ctrl+c")
        await paste(pilot, screen, "a line\r" * 10)
        assert screen.composer.text == "[paste 1: 10 lines pasted]"
        assert screen.composer.written == folded("a line\n" * 10)


async def test_a_long_paste_is_one_line_with_its_tokens(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, client, pilot, screen):
        await pilot.press(*"what is ")
        await paste(pilot, screen, PASTE)
        assert screen.composer.text == "what is [paste 1: 30 lines pasted]"
        await wait_until(pilot, lambda: "150 tokens" in beside(screen))
        await wait_until(pilot, lambda: "+152" in status(screen))
        await pilot.press("alt+o")
        assert screen.composer.text == f"what is {PASTE}"
        await pilot.press("ctrl+z")
        assert screen.composer.text == "what is [paste 1: 30 lines pasted]"
        await pilot.press("enter")
        await wait_until(pilot, lambda: client.requests)
        assert client.requests[0].messages[-1].content == f"what is {PASTE}"
        await wait_until(pilot, lambda: beside(screen) == "")


async def test_a_paste_that_is_not_sent_is_one_line_again_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        await paste(pilot, screen, PASTE)
    app.conversation.history.store.close()
    again, client = make_app(tmp_path)
    async with again.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        assert screen.composer.text == "[paste 1: 30 lines pasted]"
        await pilot.press("enter")
        await wait_until(pilot, lambda: client.requests)
        assert client.requests[0].messages[-1].content == PASTE


async def test_up_shows_earlier_questions_and_down_later_ones(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, size=NARROW) as (_, _, pilot, screen):
        await answered(pilot, screen, "of another chat")
        await pilot.press("ctrl+n")
        for text in ("first", "second", "second"):
            await answered(pilot, screen, text)
        await pilot.press(*"half", "up")
        assert screen.composer.text == "second"
        await pilot.press("up")
        assert screen.composer.text == "first"
        await pilot.press("up")
        assert screen.composer.text == "first", "there is none before"
        await pilot.press("end", "down", "down")
        assert screen.composer.text == "half"
        await pilot.press("ctrl+n", "up")
        assert screen.composer.text == "second", "a new chat has those of all chats"


async def test_up_in_an_empty_composer_unqueues_a_text(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=(LONG, "more"), tps=1)) as (
        _,
        client,
        pilot,
        screen,
    ):
        for text in ("first", "second", "third"):
            await ask(pilot, screen, text)
        assert "second" in beside(screen)
        assert "third" in beside(screen)
        await pilot.press("up")
        assert screen.composer.text == "third"
        await pilot.press("s", "enter")
        await wait_until(pilot, lambda: "thirds" in beside(screen))
        client.hurry()
        await wait_until(pilot, lambda: len(client.requests) == 3)
        assert client.requests[-1].messages[-1].content == "thirds"


async def test_a_named_file_is_counted_and_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("five words in this file\n")
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (_, client, pilot, screen):
        await pilot.press(*"read @no")
        assert "notes.txt" in listed(screen)
        await pilot.press("tab")
        assert screen.composer.text == "read @notes.txt "
        await wait_until(pilot, lambda: "5 tokens" in beside(screen))
        await wait_until(pilot, lambda: "+7" in status(screen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: client.requests)
        content = client.requests[0].messages[-1].content
        assert content.endswith("\n\nFile notes.txt:\n```\nfive words in this file\n```")


async def test_enter_after_an_unfinished_name_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("five words in this file\n")
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (_, client, pilot, screen):
        await pilot.press(*"@no x", "left", "left", "enter")
        await wait_until(pilot, lambda: client.requests)
        assert screen.composer.text == ""
        assert client.requests[0].messages[-1].content == "@no x"


async def test_a_refused_file_leaves_the_message_unsent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.bin").write_bytes(b"a\0b")
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (app, client, pilot, screen):
        await ask(pilot, screen, "read @b.bin now")
        assert screen.composer.text == "read @b.bin now"
        assert any("binary" in notice.message for notice in app._notifications)
        assert "binary" in beside(screen)
        assert client.requests == []


async def test_a_text_longer_than_the_context_stays_unsent(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, client, pilot, screen):
        await paste(pilot, screen, "word " * 9000)
        composer = screen.composer
        title = "9,000 tokens, but the context holds 8,192"
        await wait_until(pilot, lambda: title in str(composer.border_subtitle))
        await wait_until(pilot, lambda: "+9.0k does not fit" in status(screen))
        await pilot.press("enter")
        await pilot.pause()
        assert client.requests == []
        assert composer.text


async def test_a_slash_lists_commands_and_enter_runs_the_marked_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, client, pilot, screen):
        await answered(pilot, screen, "first")
        await pilot.press(*"/ne")
        assert "/new" in listed(screen)
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.conversation.history.chat is None)
        assert screen.composer.text == ""
        assert len(client.requests) == 1
        await pilot.press(*"/edit")
        assert "not available: there is no question" in listed(screen)
        await pilot.press("enter")
        assert "there is no question" in str([n.message for n in screen.app._notifications])
        await pilot.press("escape")
        assert not screen.choices.display
        assert screen.composer.text == "/edit"


async def test_enter_runs_the_typed_command(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        await pilot.press(*"/theme d")
        await wait_until(pilot, lambda: screen.completion.is_open)
        screen.composer.put("/theme nord")
        screen.action_send()
        await wait_until(pilot, lambda: app.theme == "nord")


async def test_an_unknown_command_is_no_message_and_a_path_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, client, pilot, screen):
        await ask(pilot, screen, "/nwe")
        assert any("no command /nwe" in notice.message for notice in app._notifications)
        assert screen.composer.text == "/nwe"
        await ask(pilot, screen, "/theme nrod")
        notices = [notice.message for notice in app._notifications]
        assert any("no command /theme nrod, did you mean /theme nord? To" in s for s in notices)
        assert client.requests == []
        await ask(pilot, screen, "/etc/hosts has what?")
        await wait_until(pilot, lambda: client.requests)
        await ask(pilot, screen, " /nwe")
        await wait_until(pilot, lambda: len(client.requests) == 2)


async def test_an_image_is_measured_and_sent_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    png(tmp_path / "a.png", width=40, height=30)
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (_, client, pilot, screen):
        screen.composer.put("what is @a.png ?")
        await wait_until(pilot, lambda: "image, 40 x 30" in beside(screen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: client.requests)
        content = client.requests[0].messages[-1].content
        (image,) = images_in(content)
        assert (image.path, content) == (tmp_path / "a.png", f"what is {image.reference} ?")


async def test_an_image_is_refused_without_a_projector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    png(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    blind = "Tiny has no projector: use --mmproj"
    seen = fakes_client.loaded
    monkeypatch.setattr(fakes_client, "loaded", lambda c: replace(seen(c), blindness=blind))
    async with opened(tmp_path) as (app, client, pilot, screen):
        await ask(pilot, screen, "what is @a.png ?")
        assert client.requests == []
        assert screen.composer.text == "what is @a.png ?"
        assert f"is an image, but {blind}" in beside(screen)
        notices = [notice.message for notice in app._notifications]
        assert notices == [f"@a.png is an image, but {blind}"]


async def test_a_cleared_text_returns_with_undo(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (_, _, pilot, screen):
        usual = screen.composer.placeholder
        await pilot.press("a", "ctrl+c")
        assert "ctrl+z" in str(screen.composer.placeholder)
        await pilot.press("b", "backspace")
        assert screen.composer.placeholder == usual
        await pilot.press("ctrl+z", "ctrl+z", "ctrl+z")
        assert screen.composer.text == "a"


async def test_the_export_dialog_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (app, _, pilot, screen):
        await answered(pilot, screen, "two colours")
        screen.composer.put("/exp")
        await wait_until(pilot, lambda: screen.choices.display and "/export" in listed(screen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, AskLine))
        question = " ".join(str(each.render()) for each in app.screen.query(Static))
        assert str(tmp_path) in question
        await pilot.press("enter")
        written = tmp_path / "two-colours.md"
        await wait_until(pilot, lambda: any(str(written) in n.message for n in app._notifications))
    head = written.read_text().partition("## ")[0]
    visible = "".join(line for line in head.splitlines() if not line.startswith("<!--"))
    assert "Tiny-Instruct" in visible
    assert ".gguf" not in visible
