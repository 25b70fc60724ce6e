"""What the planner lets choose: cells, comparisons, goals, cards, models, disabled options."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.render.lines import plain
from app.screens.dialogs import PickScreen
from app.screens.plan_session import PlanSession
from app.screens.planner import PlannerScreen
from app.widgets.bars import TabStrip, TitleBar
from app.widgets.planner import OptionList, PlanTable
from app.widgets.select_list import SelectList
from engine.configuration import Configuration
from engine.memory.units import GIB, MIB
from engine.planning.machine import PlannedMachine
from engine.planning.options import with_machine
from engine.planning.planner import Setup
from engine.planning.request import PlanRequest, setup_of
from tests.app.screens.plan_host import (
    Host,
    SilentDryRun,
    dialog_text,
    go_to,
    report_of,
    shown_options,
    shows,
    table_of,
)
from tests.support.fakes_app import NARROW, WIDE, wait_until
from tests.support.gguf_files import header, write


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
    assert isinstance(screen, PickScreen)
    return "\n".join(map(plain, screen.query_one(SelectList).lines))


async def test_the_marked_cell_moves_with_the_arrows_and_both_options_with_it(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=NARROW) as pilot:
        await ready(pilot, screen)
        await pilot.press("tab")
        assert screen.query_one(PlanTable).has_focus
        await pilot.press("down", "right")
        assert screen.setup is not None
        now = screen.setup.configuration
        assert (now.n_ctx, now.type_k, now.type_v) == (8192, "q8_0", "q8_0")
        assert "8,192" in shown_options(screen)
        await pilot.press("up", "up", "up")
        assert screen.setup.configuration.type_k == "f16"
        await pilot.press("tab")
        assert screen.query_one(OptionList).has_focus


async def test_a_goal_is_searched_and_explained_until_a_option_turns(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen, machine=PlannedMachine((400 * MIB,)), margin_bytes=0)
        await pilot.press("g")
        assert isinstance(app.screen, PickScreen)
        assert "most precise cache" in rows_of(app.screen)
        await pilot.press("enter")
        await shows(pilot, screen, "found for context")
        assert screen.plan is not None
        assert screen.plan.fits
        await pilot.press("left")
        assert "found for" not in report_of(screen)


@pytest.mark.slow
async def test_a_model_of_the_catalogue_is_planned_but_not_loaded(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen, machine=PlannedMachine((12 * GIB,)))
        await pilot.press("m")
        await wait_until(pilot, lambda: "quantisation Q4_K_M" in dialog_text(app.screen))
        await pilot.press(*"llama-3.1-8b")
        await wait_until(pilot, lambda: "✓ fits" in rows_of(app.screen))
        await pilot.press("right")
        await wait_until(pilot, lambda: "of 12 GiB" in rows_of(app.screen))
        await pilot.press("enter")
        await shows(pilot, screen, "llama-3.1-8b.Q5_K_M.gguf")
        await pilot.press("enter")
        assert screen.is_current
        assert len(app._notifications) == 1


async def test_a_disabled_option_shows_why_and_stays(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        await go_to(pilot, screen, "n_cpu_moe")
        assert "not used: there is no GPU" in shown_options(screen)
        assert screen.setup is not None
        screen.change(replace(screen.setup, machine=PlannedMachine((12 * GIB,))))
        await wait_until(pilot, lambda: "not used: this model has no" in shown_options(screen))
        before = screen.setup
        await pilot.press("right", "5", "space")
        assert "✗ this model has no experts" in shown_options(screen)
        assert screen.setup is before


@pytest.mark.parametrize(
    ("option", "noun", "values", "flag"),
    [
        ("mmproj", "projector", {"general.architecture": "clip"}, "--mmproj"),
        ("lora", "LoRA adapter", {"general.type": "adapter"}, "--lora"),
    ],
)
async def test_a_file_is_chosen_from_the_folder_of_its_model(
    option: str, noun: str, values: dict[str, str], flag: str, starter_path: Path, tmp_path: Path
) -> None:
    named = {"general.architecture": "llama", **values}
    tensors = [("v.weight", (32,), 0, 0)]
    write(tmp_path / "beside.gguf", header(named, tensors), data_bytes=128)  # type: ignore[arg-type]
    model = tmp_path / "model.gguf"
    model.symlink_to(starter_path)
    screen = planner(model, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen, target="llama-server")
        await go_to(pilot, screen, option)
        await pilot.press("right")
        await wait_until(pilot, lambda: f"1 {noun} · in" in dialog_text(app.screen))
        shown = dialog_text(app.screen)
        assert f"which {noun}?" in shown
        assert shown.count(str(tmp_path)) == 1
        assert "▸   beside" in shown
        assert "loads" not in shown
        await pilot.press("enter")
        await shows(pilot, screen, flag)
        await pilot.press("left")
        assert flag not in report_of(screen)


def with_model(path: Path | None, tmp_path: Path, left: PlanSession | None = None) -> PlannerScreen:
    configuration = None if path is None else Configuration(path, 4096)
    return PlannerScreen(
        path, configuration, dry_run=SilentDryRun(), presets_dir=tmp_path, scan=list, left=left
    )


async def test_a_plan_that_was_left_is_there_again_with_its_machine_and_what_was_found(
    starter_path: Path, tmp_path: Path
) -> None:
    first = with_model(starter_path, tmp_path)
    async with Host(first).run_test(size=WIDE) as pilot:
        await shows(pilot, first, "largest context")
        first.open_model("qwen3-30b-a3b:Q4_K_M")
        await shows(pilot, first, "qwen3-30b-a3b")
        assert first.setup is not None
        machine = PlannedMachine(cards=("GeForce RTX 4070",), ram_bytes=64 * GIB)
        first.apply(replace(first.setup, machine=machine))
        await pilot.press("g", "enter")
        await shows(pilot, first, "found for context")
        await go_to(pilot, first, "n_ubatch")
        left = first.left()
        before = (first.setup, first.session.user_set)
    again = with_model(starter_path, tmp_path, left)
    app = Host(again)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, again, "found for context")
        assert (again.setup, again.session.user_set) == before
        assert again.query_one(OptionList).marked_key == "n_ubatch"
        await pilot.press("r")
        await wait_until(pilot, lambda: again.setup == Setup(Configuration(starter_path, 4096)))
        assert "found for" not in report_of(again)
        assert "as loaded" in plain(again.query_one(TitleBar).lines[0])
        await pilot.press("u")
        assert again.setup == before[0]


async def test_changes_are_taken_back_one_by_one(starter_path: Path, tmp_path: Path) -> None:
    screen = with_model(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        await pilot.press("right", "right", "down", "right", "u", "u")
        assert screen.setup is not None
        now = screen.setup.configuration
        assert (now.n_ctx, now.type_k) == (6144, "f16")
        await pilot.press("u", "u")
        assert screen.setup == Setup(Configuration(starter_path, 4096))
        [notice] = app._notifications
        assert notice.message == "There is no change to undo."


async def test_an_alternative_is_applied_with_a_key(starter_path: Path, tmp_path: Path) -> None:
    screen = with_model(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot, screen)
        await wait_until(pilot, lambda: screen.session.changes is not None)
        await pilot.press("a")
        assert isinstance(app.screen, PickScreen)
        await pilot.press("q", "8")
        await pilot.press("enter")
        assert screen.setup is not None
        assert screen.setup.configuration.type_v == "q8_0"


CARDS = ("GeForce RTX 4070", "GeForce RTX 3060", "GeForce RTX 4090", "M4 Pro 24GB")


@pytest.mark.parametrize("name", ["qwen3-30b-a3b:Q4_K_M", "gemma-3-12b:Q8_0"])
async def test_the_planner_and_kvchat_plan_show_the_same_of_a_model_on_a_card(
    name: str, starter_path: Path, tmp_path: Path
) -> None:
    screen = with_model(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "largest context")
        screen.open_model(name)
        await wait_until(pilot, lambda: screen.setup and screen.setup.configuration.n_ctx == 8192)
        for card in CARDS:
            assert screen.setup is not None
            screen.apply(with_machine(screen.setup, PlannedMachine(cards=(card,))))
            expected = setup_of(
                PlanRequest(name, machine=PlannedMachine(cards=(card,))), screen.session.planner
            )
            assert screen.setup == expected, card
        screen.open_model(str(starter_path))
        await wait_until(pilot, lambda: screen.plan and screen.plan.model.file.path == starter_path)
        screen.open_model(name)
        await wait_until(pilot, lambda: screen.setup == expected)


async def test_what_the_user_set_stays_on_another_card_and_the_layers_suit_it(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = with_model(starter_path, tmp_path)
    name = "qwen3-30b-a3b:Q4_K_M"
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "largest context")
        screen.open_model(name)
        await wait_until(pilot, lambda: screen.setup and screen.setup.configuration.n_ctx == 8192)
        await go_to(pilot, screen, "n_ctx")
        await pilot.press("space", *"32k", "enter")
        assert screen.setup is not None
        screen.apply(with_machine(screen.setup, PlannedMachine(cards=CARDS[:1])))
        asked = PlanRequest(name, machine=PlannedMachine(cards=CARDS[:1]), rules={"n_ctx": 32768})
        assert screen.setup == setup_of(asked, screen.session.planner)
        await go_to(pilot, screen, "n_cpu_moe")
        await pilot.press("right")
        mine = screen.setup.configuration.n_cpu_moe
        screen.apply(with_machine(screen.setup, PlannedMachine(cards=CARDS[2:3])))
        assert screen.setup.configuration.n_cpu_moe == mine


async def test_without_a_model_on_this_machine_the_catalogue_is_open_with_verdicts(
    tmp_path: Path,
) -> None:
    screen = with_model(None, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: "quantisation Q4_K_M" in dialog_text(app.screen))
        assert "[catalogue]" in plain(app.screen.query_one(TabStrip).lines[0])
        await wait_until(pilot, lambda: " of " in dialog_text(app.screen))
        await pilot.press("tab")
        await wait_until(pilot, lambda: "no model was found in" in dialog_text(app.screen))
