"""The screen's process, as far as it is none of the screens'."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot

from app.application import SCREEN_NICENESS, KvchatApp
from app.commands import Palette
from app.screens.downloads import FirstRunScreen
from app.screens.planner import PlannerScreen
from engine.errors import ModelFileError
from tests.support.fakes_app import (
    WIDE,
    make_app,
    make_conversation,
    ready,
    services,
    wait_until,
)

OPENING = """
import os
from app import application
from app.opening import ModelRequest
def priority(*_):
    print(os.getpriority(os.PRIO_PROCESS, 0))
priority()
application.KvchatApp.run = priority
application.open_chat(ModelRequest())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are set on Linux only")
def test_the_screen_has_a_lower_priority_than_the_engine(tmp_path: Path) -> None:
    places = {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    environment = {**os.environ, **places, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OPENING], env=environment, capture_output=True, text=True, check=True
    )
    before, then = map(int, done.stdout.split())
    assert then == min(before + SCREEN_NICENESS, 19)


async def test_a_palette_opens_while_the_one_before_closes(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+p")
        app.screen.dismiss()
        app.action_command_palette()
        await pilot.pause()
        assert isinstance(app.screen, Palette)


def notices(app: App[None]) -> str:
    return "\n".join(each.message for each in app._notifications)


async def shows(pilot: Pilot[None], text: str) -> None:
    """Wait until a notice has a text."""
    await wait_until(pilot, lambda: text in notices(pilot.app))


def refuse(*_: object) -> None:
    raise ModelFileError("a.gguf is truncated at byte 12")


async def test_a_named_model_opens_with_its_notes_and_opens_again_after_a_restart(
    tmp_path: Path,
) -> None:
    conversation, client = make_conversation(tmp_path)
    given = replace(
        services(tmp_path),
        types_note=lambda _: "a note on types",
        first_hint=lambda _: "a first hint",
        planned_bytes=refuse,
    )
    app = KvchatApp(
        conversation, given, model=tmp_path / "a.gguf", theme="kvchat-dork", notices=("a notice",)
    )
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        for text in ("types", "first hint", "a notice", "kvchat-dork"):
            await shows(pilot, text)
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(client.loads) == 2)
        assert [each.model_path for each in client.loads] == [tmp_path / "a.gguf"] * 2


async def test_a_remembered_server_opens_and_cannot_have_a_draft_model(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        app.open_model("http://127.0.0.1:9#tiny")
        await wait_until(pilot, lambda: len(client.loads) == 2)
        assert (client.loads[1].server, client.loads[1].address) == (
            "http://127.0.0.1:9",
            "http://127.0.0.1:9#tiny",
        )
        app.action_draft()
        await shows(pilot, "local target model")
        await pilot.press("f2")
        await wait_until(pilot, lambda: any(isinstance(s, PlannerScreen) for s in app.screen_stack))
        await wait_until(pilot, lambda: not isinstance(app.screen, PlannerScreen))


async def test_without_a_model_that_opens_the_reason_is_shown(tmp_path: Path) -> None:
    conversation, client = make_conversation(tmp_path)
    app = KvchatApp(conversation, replace(services(tmp_path), configure=refuse))
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("escape", "ctrl+r")
        await shows(pilot, "No model is loaded")
        app.action_draft()
        await shows(pilot, "local target model")
        app.open_model(tmp_path / "a.gguf")
        await shows(pilot, "truncated at byte 12")
        assert not client.loads


@pytest.mark.faults
async def test_a_fault_of_a_task_is_one_notice_and_the_chat_goes_on(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        handle = asyncio.get_running_loop().call_exception_handler
        handle({"message": "x", "exception": ValueError("never shown")})
        handle({"message": "y", "exception": ModelFileError("shown as it is")})
        await shows(pilot, "shown as it is")
        await shows(pilot, "the chat continues")
        assert "never" not in notices(app)


async def test_the_screen_is_saved_as_a_picture_or_the_reason_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        monkeypatch.chdir(tmp_path)
        app.save_picture()
        [picture] = tmp_path.glob("*.svg")
        await shows(pilot, f"Saved ./{picture.name}")
        monkeypatch.chdir(gone)
        gone.rmdir()
        app.save_picture()
        await shows(pilot, "cannot be written")
