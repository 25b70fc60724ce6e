"""The screen's process, as far as it is none of the screens'."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.application import SCREEN_NICENESS
from app.commands import Palette
from tests.support.fakes_app import WIDE, make_app, ready

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
