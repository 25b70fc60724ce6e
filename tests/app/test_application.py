"""The screen's process, as far as it is none of the screens'."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from textual._styles_cache import StylesCache
from textual.color import Color

from app.application import SCREEN_NICENESS
from app.screens.dialogs import HelpScreen
from tests.support.fakes_app import WIDE, make_app, ready, wait_until

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
def test_the_screen_steps_back_behind_the_engine(tmp_path: Path) -> None:
    places = {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    environment = {**os.environ, **places, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OPENING], env=environment, capture_output=True, text=True, check=True
    )
    before, then = map(int, done.stdout.split())
    assert then == min(before + SCREEN_NICENESS, 19)


async def test_a_theme_of_the_users_comes_before_the_own_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    themes = tmp_path / "config" / "kvchat" / "themes"
    themes.mkdir(parents=True)
    (themes / "mine.toml").write_text('name = "kvchat-dark"\n[colors]\nprimary = "#123456"\n')
    app, _ = make_app(tmp_path)
    assert app.current_theme.primary == "#123456"


async def test_what_a_closed_screen_painted_is_let_go(tmp_path: Path) -> None:
    """Textual's function keeps each widget that it was asked for, until it is emptied."""
    app, _ = make_app(tmp_path)
    asked = StylesCache.get_inner_outer.cache_info
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        StylesCache.get_inner_outer.cache_clear()
        app.screen.refresh(layout=True)
        await wait_until(pilot, lambda: asked().misses)
        for n in range(1000):  # as many as an afternoon of screens
            StylesCache().get_inner_outer(Color(0, 0, n % 256), Color(0, 0, 0))
        await pilot.press("f1")
        await ready(pilot)
        await wait_until(pilot, lambda: asked().currsize < 500)
