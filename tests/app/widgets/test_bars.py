"""The line of keys: keys without space are not cut without a sign."""

from pathlib import Path

import pytest

from app.render.lines import plain, width_of
from app.screens.dialogs import HelpScreen
from app.screens.export import ExportScreen
from app.widgets.bars import KeyBar, ShownKey, fitting
from engine.configuration import Configuration
from engine.planning.planner import Planner, Setup
from tests.support.fakes_app import make_app, ready, wait_until

MORE = ShownKey("f1", "F1", "more")


def keys(*names: str) -> list[ShownKey]:
    return [ShownKey(name, name, "Do") for name in names]


def test_keys_that_fit_are_all_shown_without_more() -> None:
    shown = keys("f1", "escape", "r")
    assert fitting(shown, 80, MORE) == shown


@pytest.mark.parametrize("width", [0, 9, 20, 40, 50])
def test_keys_that_do_not_fit_end_with_more_and_function_keys_go_before_others(width: int) -> None:
    shown = keys("f1", "f2", "f3", "a", "escape", "b", "c", "d")
    left = fitting(shown, width, MORE)
    assert left[-1] == MORE
    assert width_of(tuple(run for key in left for run in key.runs)) <= max(width, 9)
    names = [key.key for key in left]
    assert "f2" not in names or "a" in names
    assert names == ["f1"] or "escape" in names


SCREENS = {
    "chat": (),
    "transcript": ("shift+tab",),
    "chats": ("ctrl+l",),
    "cache": ("f6",),
    "planner": ("f2",),
    "presets": ("f3",),
    "compare": ("x", "f4"),
    "export": (),
}


@pytest.mark.parametrize(
    "width",
    [80, pytest.param(100, marks=pytest.mark.slow), pytest.param(120, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", SCREENS)
async def test_on_every_screen_the_help_is_offered_for_keys_without_space(
    tmp_path: Path, starter_path: Path, name: str, width: int
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(width, 30)) as pilot:
        await ready(pilot)
        if name == "export":
            configuration = Configuration(starter_path, 2048)
            plan = Planner().plan(Setup(configuration, "llama-server"))
            app.push_screen(ExportScreen(plan))
        await pilot.press(*SCREENS[name])
        await wait_until(
            pilot, lambda: app.screen.query(KeyBar) and app.screen.query_one(KeyBar).lines
        )
        await pilot.pause()
        bar = app.screen.query_one(KeyBar)
        line = bar.lines[0]
        bound = [
            active.binding.description
            for active in app.screen.active_bindings.values()
            if active.binding.show and active.enabled and active.binding.description != "Help"
        ]
        text = plain(line)
        assert width_of(line) <= bar.size.width
        assert text.rstrip().endswith("f1 more") or all(what in text for what in bound)
        assert "esc" in text
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("f1")
        assert not isinstance(app.screen, HelpScreen)


async def test_a_click_on_a_key_presses_it(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await wait_until(pilot, lambda: app.screen.query_one(KeyBar).lines)
        column = plain(app.screen.query_one(KeyBar).lines[0]).index("f1")
        await pilot.click(KeyBar, offset=(column, 0))
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
