"""The export screen: every format is looked at, copied, saved, installed."""

import json
from pathlib import Path

from textual.widgets import Input

from app.render.lines import plain
from app.screens.export import ExportScreen
from app.widgets.bars import TitleBar
from app.widgets.select_list import SelectList
from engine.configuration import Configuration
from engine.planning.planner import Planner, Setup
from engine.presets.formats import FORMATS
from tests.app.screens.plan_host import Host, report_of
from tests.support.fakes_app import NARROW, WIDE, wait_until


def export_screen(path: Path, **changes: object) -> ExportScreen:
    configuration = Configuration(path, 2048, **changes)  # type: ignore[arg-type]  # by name
    return ExportScreen(Planner().plan(Setup(configuration, "llama-server")))


def title_of(screen: ExportScreen) -> str:
    return "".join(map(plain, screen.query_one(TitleBar).lines))


def choose(screen: ExportScreen, name: str) -> None:
    screen.query_one(SelectList).action_go(list(FORMATS).index(name))


async def test_every_format_is_shown_by_arrows(starter_path: Path) -> None:
    screen = export_screen(starter_path)
    app = Host(screen)
    async with app.run_test(size=NARROW) as pilot:
        for name, format_ in FORMATS.items():
            await wait_until(pilot, lambda title=format_.title: title in title_of(screen))
            assert report_of(screen), name
            await pilot.press("down")


async def test_the_whole_text_is_copied(starter_path: Path) -> None:
    screen = export_screen(starter_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        choose(screen, "models-preset")
        await wait_until(pilot, lambda: "version = 1" in report_of(screen))
        await pilot.press("c")
        assert f"\nmodel = {starter_path}\n" in app.clipboard


async def test_a_script_is_saved_so_that_it_can_be_run(starter_path: Path, tmp_path: Path) -> None:
    screen = export_screen(starter_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        choose(screen, "shell")
        await wait_until(pilot, lambda: "#!/bin/sh" in report_of(screen))
        await pilot.press("s")
        path = tmp_path / "serve.sh"
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        assert path.stat().st_mode & 0o111
        path.write_text("mine")
        await pilot.press("s")
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter", "n")
        assert path.read_text() == "mine"
        await pilot.press("s")
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter", "y")
        assert path.read_text().startswith("#!/bin/sh")


async def test_a_path_that_a_format_cannot_hold_is_reported_in_place_of_the_text(
    starter_path: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "a;b.gguf"
    odd.symlink_to(starter_path)
    screen = export_screen(odd)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        choose(screen, "models-preset")
        await wait_until(pilot, lambda: "be quoted" in report_of(screen))
        await pilot.press("c")
        assert app.clipboard == ""
        assert len(app._notifications) == 1


async def test_lm_studios_defaults_are_joined_with_those_that_are_there(
    starter_path: Path, tmp_path: Path
) -> None:
    model = tmp_path / ".lmstudio" / "models" / "me" / "starter" / "m.gguf"
    model.parent.mkdir(parents=True)
    model.symlink_to(starter_path)
    screen = export_screen(model)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        choose(screen, "lm-studio")
        await wait_until(pilot, lambda: "contextLength" in report_of(screen))
        place = screen.install_path
        assert place is not None
        place.parent.mkdir(parents=True)
        place.write_text('{"load": {"fields": [{"key": "mine", "value": 1}]}}')
        await pilot.press("i")
        fields = json.loads(place.read_text())["load"]["fields"]
        assert {"key": "mine", "value": 1} in fields
        assert {"key": "llm.load.contextLength", "value": 2048} in fields
        assert place.with_name(f"{place.name}.bak").exists()
