"""What the planner lets choose: cells, comparisons, goals, cards, models, idle knobs."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import MouseScrollUp
from textual.pilot import Pilot

from app.render.lines import plain
from app.screens.plan_cards import CardsScreen
from app.screens.plan_goal import GoalScreen
from app.screens.plan_models import PlanModelsScreen
from app.screens.planner import PlannerScreen
from app.widgets.plan_knobs import PlanKnobs
from app.widgets.plan_list import PlanList
from app.widgets.plan_table import PlanTable
from engine.configuration import Configuration
from engine.memory.units import GIB, MIB
from tests.app.screens.plan_host import (
    Host,
    SilentDryRun,
    go_to,
    knobs_of,
    report_of,
    shows,
    table_of,
)
from tests.fakes_app import NARROW, WIDE, wait_until
from tests.gguf_files import header, write


def planner(path: Path, tmp_path: Path) -> PlannerScreen:
    return PlannerScreen(
        path,
        Configuration(path, 4096),
        dry_run=SilentDryRun(),
        presets_dir=tmp_path / "presets",
        scan=list,
    )


async def ready(pilot: Pilot[None], screen: PlannerScreen, **changes: object) -> None:
    """Wait for the first plan, and plan other values."""
    await shows(pilot, screen, "largest context")
    if changes:
        assert screen.setup is not None
        screen.change(replace(screen.setup, **changes))  # type: ignore[arg-type]
    await wait_until(pilot, lambda: "[" in table_of(screen))


def rows_of(screen: object) -> str:
    assert isinstance(screen, CardsScreen | GoalScreen | PlanModelsScreen)
    return "\n".join(map(plain, screen.query_one(PlanList).lines))


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_the_marked_cell_moves_with_the_arrows_and_both_knobs_with_it(
    size: tuple[int, int], starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=size) as pilot:
        await ready(pilot, screen)
        await pilot.press("tab")
        assert screen.query_one(PlanTable).has_focus
        await pilot.press("down", "right")
        assert screen.setup is not None
        now = screen.setup.configuration
        assert (now.n_ctx, now.type_k, now.type_v) == (8192, "q8_0", "q8_0")
        assert "8,192" in knobs_of(screen)
        await pilot.press("up", "up", "up")
        assert screen.setup.configuration.type_k == "f16"
        await pilot.press("tab")
        assert screen.query_one(PlanKnobs).has_focus


async def test_a_click_on_a_cell_chooses_it(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        table = screen.query_one(PlanTable)
        column = table.contexts.index(2048)
        place = (table.gutter.left + 10 + 8 * column + 4, table.gutter.top + 1 + 2)
        await pilot.click(PlanTable, offset=place)
        assert screen.setup is not None
        now = screen.setup.configuration
        assert (now.n_ctx, now.type_k) == (2048, "q4_0")


async def test_cells_that_llama_cpp_refuses_cannot_be_chosen(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        off = replace(Configuration(starter_path, 4096), flash_attention="off")
        await ready(pilot, screen, configuration=off)
        await pilot.press("tab", "down")
        assert screen.setup is not None
        assert screen.setup.configuration.type_k == "f16"
        assert screen.plan is not None


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_two_plans_stand_side_by_side_and_change_places(
    size: tuple[int, int], starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=size) as pilot:
        await ready(pilot, screen)
        await pilot.press("c", "right")
        assert "4,096 → 6,144" in report_of(screen)
        assert "change" in report_of(screen)
        await pilot.press("w")
        assert "6,144 → 4,096" in report_of(screen)
        await pilot.press("c")
        assert "change" not in report_of(screen)
        await pilot.press("w")
        assert screen.setup is not None
        assert screen.setup.configuration.n_ctx == 4096


async def test_what_ifs_come_when_the_knobs_rest(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        await wait_until(pilot, lambda: screen.has_what_ifs)
        assert "what if" in report_of(screen)
        assert "q8_0 K and V" in report_of(screen)
        await wait_until(pilot, lambda: "▸ 6,144" in knobs_of(screen))
        await pilot.press("down")
        await wait_until(pilot, lambda: "▸ bf16" in knobs_of(screen))


async def test_going_to_another_knob_at_once_keeps_the_what_ifs(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        await wait_until(pilot, lambda: screen.has_what_ifs)
        app.simulate_key("right")
        app.simulate_key("down")
        await wait_until(pilot, lambda: "▸ K type" in knobs_of(screen))
        await wait_until(pilot, lambda: screen.has_what_ifs)
        assert "what if" in report_of(screen)


async def test_a_goal_is_searched_and_explained_until_a_knob_turns(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen, vram_bytes=(400 * MIB,), margin_bytes=0)
        await pilot.press("g")
        assert isinstance(app.screen, GoalScreen)
        assert "finest cache" in rows_of(app.screen)
        await pilot.press("enter")
        await shows(pilot, screen, "found for context")
        assert screen.plan is not None
        assert screen.plan.fits
        await pilot.press("left")
        assert "found for" not in report_of(screen)


async def test_a_search_that_finds_nothing_is_a_notice(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen, ram_bytes=64 * MIB)
        await pilot.press("g", "enter")
        await wait_until(pilot, lambda: len(app._notifications))
        assert screen.setup is not None
        assert screen.setup.configuration.n_ctx == 4096


async def test_cards_are_searched_by_typing_and_several_are_added(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        await pilot.press("d")
        assert isinstance(app.screen, CardsScreen)
        await pilot.press(*"3060")
        assert "RTX 3060" in rows_of(app.screen)
        assert "RTX 4090" not in rows_of(app.screen)
        await pilot.press("plus", "enter")
        assert screen.setup is not None
        assert [name.split()[-1] for name in screen.setup.cards] == ["3060", "3060"]
        await shows(pilot, screen, "GPU 1")
        await pilot.press("d", "escape", "d", *"nothing like it", "enter", "escape")
        assert isinstance(app.screen, CardsScreen)
        await pilot.press("home", "enter")
        assert screen.setup.cards == ()


async def test_a_model_of_the_catalogue_is_planned_but_not_loaded(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen, vram_bytes=(12 * GIB,))
        await pilot.press("m", "tab", *"llama-3.1-8b")
        await wait_until(pilot, lambda: "✓ fits" in rows_of(app.screen))
        await pilot.press("right")
        await wait_until(pilot, lambda: "of 12 GiB" in rows_of(app.screen))
        await pilot.press("enter")
        await shows(pilot, screen, "llama-3.1-8b.Q5_K_M.gguf")
        await pilot.press("enter")
        assert screen.is_current
        assert len(app._notifications) == 1


async def test_an_idle_knob_says_why_and_stays(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        before = screen.setup
        go_to(screen, "n_cpu_moe")
        assert "idle: this model has no" in knobs_of(screen)
        await pilot.press("right", "5", "space")
        assert "✗ this model has no experts" in knobs_of(screen)
        assert screen.setup is before


async def test_the_wheel_turns_the_knob_under_the_mouse(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        knobs = screen.query_one(PlanKnobs)
        await pilot._post_mouse_events([MouseScrollUp], PlanKnobs, offset=(30, 1), button=0)
        await wait_until(pilot, lambda: "6,144" in knobs_of(screen))
        assert knobs.knob.name == "n_ctx"


async def test_a_projector_is_chosen_from_the_folder_of_its_model(
    starter_path: Path, tmp_path: Path
) -> None:
    write(tmp_path / "mmproj-model.gguf", header({"general.architecture": "clip"}))
    model = tmp_path / "model.gguf"
    model.symlink_to(starter_path)
    screen = planner(model, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen, target="llama-server")
        go_to(screen, "mmproj")
        await pilot.press("right")
        await wait_until(pilot, lambda: "1 models" in str(app.screen.query_one("#where").render()))
        await pilot.press("down", "enter")
        await shows(pilot, screen, "--mmproj")
        await pilot.press("left")
        assert "--mmproj" not in report_of(screen)


async def test_a_machine_that_cannot_be_is_answered_beside_the_knob(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        go_to(screen, "vram")
        await pilot.press("space", *"RTX 9999", "enter")
        assert "✗ no card 'RTX 9999'" in knobs_of(screen)
        await pilot.press("escape", "space", *"2x24GiB", "enter")
        assert "2x24 GiB" in knobs_of(screen)
