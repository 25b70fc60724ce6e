"""F4: two arms answer one prompt, side by side."""

from pathlib import Path

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from app.chat.attachments import folded
from app.render.lines import plain
from app.screens.compare import CompareScreen
from app.screens.dialogs import PickScreen
from app.widgets.ink import InkLines, LinesView
from engine.configuration import ControllerName
from tests.support.fakes_app import NARROW, WIDE, answered, make_app, ready, wait_until
from tests.support.fakes_client import Script

QUESTION = "What is new?"


async def opened(pilot: Pilot[None]) -> CompareScreen:
    """The screen before anything is asked."""
    await pilot.press("f4")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, CompareScreen))
    screen = pilot.app.screen
    assert isinstance(screen, CompareScreen)
    await wait_until(pilot, lambda: screen.prompt.has_focus)
    return screen


async def compared(pilot: Pilot[None]) -> CompareScreen:
    """The screen after its first block."""
    screen = await opened(pilot)
    await pilot.press("enter")
    await wait_until(pilot, lambda: screen.comparison.blocks or screen.comparison.problem)
    screen.show_now()
    await pilot.pause()
    return screen


def shown(screen: CompareScreen) -> str:
    lines = [line for widget in screen.query(InkLines) for line in widget.lines]
    lines += [line for pane in screen.query(LinesView) for line in pane.lines]
    return "\n".join(plain(line) for line in lines)


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_the_composers_text_is_answered_by_both_arms_with_a_verdict(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, client = make_app(tmp_path, Script(("All is well here.",)))
    async with app.run_test(size=size) as pilot:
        chat = await ready(pilot)
        chat.composer.put(QUESTION)
        screen = await compared(pilot)
        text = shown(screen)
        assert text.count("All is well here.") == 2
        assert QUESTION in text
        assert "1.00x so far" in text
        assert "identical: every" in text
        assert "colour ▪ lookup" in text
        first = client.requests[0]
        assert client.requests == [first] * 4
        assert first.seed is not None
        assert [message.content for message in first.messages] == [QUESTION]
        panes = list(screen.query(LinesView))
        assert all(pane.size.height >= 3 for pane in panes)
        assert (panes[0].region.y == panes[1].region.y) == (size != NARROW)


async def test_the_chat_gets_its_engine_and_its_composer_back(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        before = chat.conversation.speculation
        chat.composer.put(QUESTION)
        await compared(pilot)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat)
        assert client.speculation == before
        assert chat.composer.text == QUESTION
        assert chat.conversation.entries() == []
        await answered(pilot, chat, "go on")
        assert len(client.requests) == 5
        assert "Hello there." in chat.transcript.text


async def test_pastes_and_files_of_the_prompt_go_to_both_arms_as_the_chat_would_send_them(
    tmp_path: Path,
) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.outbox.folder = tmp_path
        (tmp_path / "notes.md").write_text("a note\n")
        pasted = "\n".join(f"line {number}" for number in range(12))
        screen = await opened(pilot)
        screen.prompt.post_message(Paste(pasted))
        await wait_until(pilot, lambda: screen.prompt.text)
        screen.prompt.insert(" sum up @notes.md")
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.comparison.blocks)
        first, *others = [request.messages[-1].content for request in client.requests]
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat)
        chat.composer.put(f"{folded(pasted)} sum up @notes.md")
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(client.requests) == 5)
        assert [first] * 4 == [*others, client.requests[4].messages[-1].content]
        assert "line 11" in first
        assert "a note" in first


async def test_without_a_question_or_while_a_reply_runs_it_gives_the_reason(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(tps=1.0))
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        await opened(pilot)
        await pilot.press("enter")
        await pilot.pause()
        assert any("prompt is empty" in toast.message for toast in app._notifications)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat)
        chat.composer.put("go")
        await pilot.press("enter")
        await wait_until(pilot, lambda: chat.conversation.is_replying)
        await pilot.press("f4")
        await pilot.pause()
        assert app.screen is chat
        assert any("no running reply" in toast.message for toast in app._notifications)
        assert len(client.requests) == 1


async def test_nothing_runs_before_the_prompt_was_read_and_sent(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put("Count")
        screen = await opened(pilot)
        await pilot.press(*" or run")
        assert client.requests == []
        assert screen.prompt.text == "Count or run", "letters are text here, not keys"
        screen.show_now()
        assert "at most 128 tokens" in str(screen.prompt.border_subtitle)
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.comparison.blocks)
        assert [m.content for m in client.requests[0].messages] == ["Count or run"]
        assert client.requests[0].max_tokens == 128
        await pilot.press("e", *" to", "enter")
        await wait_until(pilot, lambda: len(client.requests) == 8)
        assert [m.content for m in client.requests[7].messages] == ["Count or run to"]


async def test_escape_stops_first_and_leaves_then(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, Script(tps=0.1))
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put(QUESTION)
        screen = await opened(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.comparison.is_running)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.comparison.is_running)
        assert client.n_stops == 1
        screen.show_now()
        assert "stopped" in shown(screen)
        assert app.screen is screen
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat)


async def test_an_arm_is_chosen_from_a_list(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put(QUESTION)
        screen = await compared(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, PickScreen))
        await pilot.press(*"lookup fixed", "enter")
        await wait_until(pilot, lambda: app.screen is screen)
        assert screen.arms[1].name.startswith("lookup:fixed:")
        assert screen.comparison.blocks == []
        await pilot.press("r")
        await wait_until(pilot, lambda: screen.comparison.blocks)
        assert any(settings.controller == ControllerName.FIXED for settings in client.settings)
        assert client.requests[-1].seed == client.requests[0].seed


async def test_five_more_blocks_decide(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put(QUESTION)
        screen = await compared(pilot)
        await pilot.press("r")
        await wait_until(pilot, lambda: len(screen.comparison.blocks) == 6)
        screen.show_now()
        assert "no clear difference (1.00x" in shown(screen)
        assert len(client.requests) == 24


async def test_an_engine_that_dies_is_reported_here_and_in_the_chat(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, Script(dies_after=1))
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put(QUESTION)
        screen = await compared(pilot)
        assert "It was killed by signal 9." in shown(screen)
        await pilot.press("r")
        await pilot.pause()
        assert not screen.comparison.is_running
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat)
        assert "It was killed" in chat.transcript.text
