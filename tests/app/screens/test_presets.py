"""The presets screen, on real files and a real header."""

from pathlib import Path

import pytest
from textual.widgets import Input

from app.render.lines import plain
from app.screens.dialogs import AskLine, AskYes
from app.screens.export import ExportScreen
from app.screens.models import FilesScreen
from app.screens.presets import PresetsScreen
from app.widgets.bars import TitleBar
from app.widgets.select_list import SelectList
from engine.configuration import Configuration
from engine.presets.library import builtin_dir
from tests.app.screens.plan_host import Host, report_of, shows
from tests.support.fakes_app import NARROW, WIDE, wait_until

MINE = 'name = "mine"\ndescription = "For tests"\nn_ctx = 1024\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "mine.toml").write_text(MINE)
    return folder


def presets(folder: Path, model: Path | None) -> PresetsScreen:
    return PresetsScreen(folder, None if model is None else Configuration(model, 4096))


def names(screen: PresetsScreen) -> list[str]:
    return list(map(plain, screen.query_one(SelectList).lines))


async def test_the_users_come_first_and_broken_ones_are_marked_with_every_fault(
    folder: Path, starter_path: Path
) -> None:
    (folder / "bad.toml").write_text('name = "bad"\nn_ctxx = 1\nn_slots = 0\n')
    screen = presets(folder, starter_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✗ bad.toml has 2 faults")
        shown = [name.strip() for name in names(screen)]
        assert shown[:3] == ["▸ bad  ✗ broken", "mine  yours", "balanced"]
        assert "did you mean n_ctx?" in report_of(screen)
        await pilot.press("enter")
        assert screen.is_current
        assert len(pilot.app._notifications) == 1


async def test_the_preview_shows_the_file_and_what_it_comes_to(
    folder: Path, starter_path: Path
) -> None:
    screen = presets(folder, starter_path)
    async with Host(screen).run_test(size=NARROW) as pilot:
        await shows(pilot, screen, "✓ fits")
        text = report_of(screen)
        assert "For tests" in text
        assert "context 1,024" in text
        assert 'name = "mine"' in text
        await pilot.press("j")
        await shows(pilot, screen, "context 8,192")
        await pilot.press("x")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, ExportScreen))
        assert "-balance" in plain(pilot.app.screen.query_one(TitleBar).lines[0])


async def test_enter_gives_the_configuration_for_the_loaded_model_and_the_system_prompt(
    folder: Path, starter_path: Path
) -> None:
    (folder / "mine.toml").write_text(MINE + 'system_prompt = "Be brief."\n')
    screen = presets(folder, starter_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.given)
    [given] = app.given
    assert given is not None
    assert (given.model_path, given.n_ctx) == (starter_path, 1024)
    assert screen.system_prompt == "Be brief."


async def test_the_presets_own_model_is_preferred(
    folder: Path, starter_path: Path, gemma_path: Path
) -> None:
    (folder / "mine.toml").write_text(f'{MINE}model = "{gemma_path}"\n')
    screen = presets(folder, starter_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, f"with {gemma_path.stem}")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.given)
    assert app.given[0] is not None
    assert app.given[0].model_path == gemma_path


async def test_without_any_model_one_is_asked_for(folder: Path, starter_path: Path) -> None:
    screen = presets(folder, None)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "no model is loaded: press enter")
        assert "✗" not in report_of(screen)
        title = plain(screen.query_one(TitleBar).lines[0])
        assert title == " presets  no model is loaded: kvchat asks for one when you load a preset"
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, FilesScreen))
        app.screen.dismiss(starter_path)
        await wait_until(pilot, lambda: app.given)
    assert app.given[0] is not None
    assert (app.given[0].model_path, app.given[0].n_ctx) == (starter_path, 1024)


async def test_a_preset_of_the_user_is_renamed_and_deleted(
    folder: Path, starter_path: Path
) -> None:
    screen = presets(folder, starter_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await pilot.press("r")
        assert isinstance(app.screen, AskLine)
        app.screen.query_one(Input).value = "MINE"
        await pilot.press("enter")
        await shows(pilot, screen, 'name = "MINE"')
        assert [path.name for path in folder.iterdir()] == ["mine.toml"]
        await pilot.press("r")
        app.screen.query_one(Input).value = "Mine too"
        await pilot.press("enter")
        assert [path.name for path in folder.iterdir()] == ["mine-too.toml"]
        await shows(pilot, screen, 'name = "Mine too"')
        await pilot.press("d", "n")
        assert len(list(folder.iterdir())) == 1
        await pilot.press("d", "y")
        assert list(folder.iterdir()) == []
        assert "Mine too" not in "".join(names(screen))


async def test_a_preset_that_comes_with_kvchat_stays_with_the_reason(
    folder: Path, starter_path: Path
) -> None:
    before = sorted(builtin_dir().iterdir())
    screen = presets(folder, starter_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await pilot.press("j", "d")
        assert screen.is_current
        await pilot.press("r")
        assert screen.is_current
        assert ["is built in" in notice.message for notice in app._notifications] == [True] * 2
    assert sorted(builtin_dir().iterdir()) == before


async def test_presets_beside_a_server_ask_for_a_model_and_its_own_leads_there(
    folder: Path,
) -> None:
    (folder / "cellar.toml").write_text('name = "cellar"\nserver = "http://127.0.0.1:9"\n')
    screen = PresetsScreen(folder, Configuration.at_server("http://127.0.0.1:9", "a/tiny.gguf"))
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "server generates")
        await pilot.press("down")
        await shows(pilot, screen, "specifies no model")
        await pilot.press("up", "enter")
        await wait_until(pilot, lambda: len(app.given))
    assert app.given[0] is not None
    assert app.given[0].server == "http://127.0.0.1:9"


async def test_what_does_not_fit_is_loaded_after_a_question_only(
    folder: Path, starter_path: Path
) -> None:
    (folder / "mine.toml").write_text('name = "mine"\nn_ctx = 2000000000\n')
    screen = presets(folder, starter_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✗ does not fit")
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, AskYes))
        await pilot.press("n")
        assert app.given == []
