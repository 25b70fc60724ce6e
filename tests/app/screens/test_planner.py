"""The planner by keyboard and mouse, on real headers."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from textual.widgets import Input

from app.render.lines import plain
from app.screens.dialogs import AskLine, AskYes
from app.screens.models import FilesScreen, ModelsScreen
from app.screens.planner import PlannerScreen
from app.widgets.ink import LinesView
from app.widgets.planner import OptionList, PlanTable
from app.widgets.select_list import SelectList
from engine.configuration import Configuration, DraftConfiguration, PredictorName
from engine.events import BufferSize
from engine.memory.dry_run import COMMAND
from engine.memory.units import GIB, MIB
from engine.model.library import ModelEntry
from engine.presets.library import find_preset
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

HUGE = (200, 50)


def planner(path: Path | None, tmp_path: Path, **changes: object) -> PlannerScreen:
    configuration = None if path is None else Configuration(path, 4096)
    options: dict[str, object] = {
        "dry_run": SilentDryRun(), "presets_dir": tmp_path / "presets", **changes
    }  # fmt: skip
    return PlannerScreen(path, configuration, **options)  # type: ignore[arg-type]


def entry(path: Path) -> ModelEntry:
    return ModelEntry(
        path=path,
        name=path.stem,
        architecture="llama",
        file_type="Q4_1",
        n_ctx_train=8192,
        nbytes=path.stat().st_size,
    )


async def test_it_shows_cost_largest_context_table_and_arguments(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        text = report_of(screen)
        for part in ("weights", "KV cache", "= exact", "~ estimate", "largest context 8,192",
                     "--ctx-size 4096", str(starter_path.name)):  # fmt: skip
            assert part in text
        await shows(pilot, screen, "the dry run failed: not in this test")
        await wait_until(pilot, lambda: "[✓" in table_of(screen))
        for part in ("4k", "8k", "f16", "q4_0", "✗ too large"):
            assert part in table_of(screen)


async def test_a_turn_of_a_option_changes_numbers_and_arguments_at_once(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "--ctx-size 4096")
        await pilot.press("right")
        assert "--ctx-size 6144" in report_of(screen)
        await pilot.press("down", "right", "right")
        assert "--cache-type-k q8_0" in report_of(screen)
        await wait_until(pilot, lambda: "q8_0/f16" in table_of(screen))


async def test_a_typed_value_counts_and_nonsense_is_answered_beside_its_option(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await pilot.press("2", "k", "enter")
        assert "--ctx-size 2048" in report_of(screen)
        await pilot.press("space", "minus", "4", "enter")
        assert "✗ -4 is not a whole" in shown_options(screen)
        await pilot.press("escape")
        assert "✗" not in shown_options(screen)
        assert screen.is_current
        await pilot.press("0", "enter")
        assert "✗ 0 is not a whole" in shown_options(screen)
        assert "--ctx-size 2048" in report_of(screen)


async def test_what_llama_cpp_refuses_is_shown_in_place_of_the_bar(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await pilot.press("down", "down", "right", "right", "down", "left")
        assert "✗ llama.cpp does not support this" in report_of(screen)
        assert "V type q8_0 needs flash attention" in report_of(screen)
        assert "weights" not in report_of(screen)
        await pilot.press("enter", "s", "x")
        assert screen.is_current
        await pilot.press("right")
        assert "weights" in report_of(screen)


async def test_enter_gives_the_configuration_and_escape_gives_none(
    starter_path: Path, tmp_path: Path
) -> None:
    for key, given in (("enter", 6144), ("l", 6144), ("escape", None)):
        screen = planner(starter_path, tmp_path)
        app = Host(screen)
        async with app.run_test(size=WIDE) as pilot:
            await shows(pilot, screen, "✓ fits")
            await pilot.press("right", key)
            await wait_until(pilot, lambda app=app: app.given)
        [answer] = app.given
        assert (answer and answer.n_ctx) == given


async def test_what_does_not_fit_is_loaded_after_a_question_only(
    starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(total=8 * GIB, available=6 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await pilot.press(*"16m", "enter")  # 360 GiB
        await shows(pilot, screen, "✗ does not fit")
        await go_to(pilot, screen, "vram")
        await pilot.press("space", *"1MiB", "enter")
        await shows(pilot, screen, "GPU 0 lacks")
        await pilot.press("left")
        assert "✗ does not fit" in report_of(screen)
        await pilot.press("enter")
        assert isinstance(app.screen, AskYes)
        await pilot.press("n")
        assert app.given == []
        await pilot.press("enter", "y")
        await wait_until(pilot, lambda: app.given)


async def test_changes_are_undone_reset_searched_for_and_applied(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "--ctx-size 4096")
        await pilot.press("right", "right", "u")
        await shows(pilot, screen, "--ctx-size 6144")
        await pilot.press("r")
        await shows(pilot, screen, "--ctx-size 4096")
        await pilot.press("g")
        await wait_until(pilot, lambda: pilot.app.screen is not screen)
        await pilot.press("enter")
        await shows(pilot, screen, "--ctx-size 8192")
        await wait_until(pilot, lambda: bool(screen.session.changes))
        before = screen.setup
        await pilot.press("a")
        await wait_until(pilot, lambda: pilot.app.screen is not screen)
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.setup != before)
        await pilot.press("d")
        await wait_until(pilot, lambda: pilot.app.screen is not screen)
        await pilot.press(*"3060", "enter")
        await wait_until(pilot, lambda: pilot.app.screen is screen)
        assert screen.setup is not None
        assert screen.setup.machine.cards == ("GeForce RTX 3060",)


async def test_f_takes_the_largest_context_that_fits(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "--ctx-size 4096")
        await pilot.press("f")
        assert "--ctx-size 8192" in report_of(screen)


async def test_a_preset_is_saved_and_written_over_after_a_question(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        for n_ctx, answers in ((6144, []), (8192, ["y"])):
            await pilot.press("right", "s")
            assert isinstance(app.screen, AskLine)
            app.screen.query_one(Input).value = "mine"
            await pilot.press("enter")
            assert isinstance(app.screen, AskYes) == bool(answers)
            await pilot.press(*answers)
            preset = find_preset("mine", tmp_path / "presets")
            assert (preset.n_ctx, preset.model) == (n_ctx, str(starter_path))


async def test_another_model_is_chosen_from_those_found(
    starter_path: Path, gemma_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path, scan=lambda: [entry(gemma_path)])
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await pilot.press("m")
        assert isinstance(app.screen, ModelsScreen)
        rows = app.screen.query_one(SelectList)
        await wait_until(pilot, lambda: "✓ fits" in "".join(map(plain, rows.lines)))
        await pilot.press("enter")
        await shows(pilot, screen, gemma_path.name)
        assert "--ctx-size 8192" in report_of(screen)


async def test_a_draft_model_is_chosen_with_right_and_taken_away_with_left(
    starter_path: Path, tmp_path: Path
) -> None:
    (draft := tmp_path / "draft.gguf").symlink_to(starter_path)
    screen = planner(starter_path, tmp_path, scan=lambda: [entry(draft)])
    app = Host(screen)
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        await go_to(pilot, screen, "draft")
        await pilot.press("right")
        assert isinstance(app.screen, FilesScreen)
        await wait_until(pilot, lambda: "1 draft model · in" in dialog_text(app.screen))
        assert "which draft model?" in dialog_text(app.screen)
        await pilot.press("down", "enter")
        await shows(pilot, screen, "--model-draft")
        assert screen.setup is not None
        assert screen.setup.configuration.draft == DraftConfiguration(draft, 4096)
        await pilot.press("left")
        assert "--model-draft" not in report_of(screen)
        assert screen.setup.configuration.speculation.predictor is PredictorName.SUFFIX


async def test_planned_stands_beside_loaded_for_the_same_model_only(
    starter_path: Path, gemma_path: Path, tmp_path: Path
) -> None:
    measured = (BufferSize("CPU", "KV", 77 * MIB),)
    screen = planner(starter_path, tmp_path, measured=measured)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "77 MiB")
        screen.open_model(gemma_path)
        await shows(pilot, screen, gemma_path.name)
        assert "77 MiB" not in report_of(screen)


async def test_the_dry_run_comes_in_the_background_and_ends_with_the_screen(
    starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path, dry_run=None)
    app = Host(screen)
    before = psutil.Process().children()
    async with app.run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "* measured")
        children = [each for each in psutil.Process().children() if each not in before]
        [process] = [each for each in children if COMMAND[-1] in each.cmdline()]
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.given)
        await wait_until(pilot, lambda: not process.is_running())


@pytest.mark.parametrize("size", [NARROW, WIDE, HUGE])
async def test_it_is_usable_at_every_size(
    size: tuple[int, int], starter_path: Path, tmp_path: Path
) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=size) as pilot:
        await shows(pilot, screen, "--ctx-size")
        options = screen.query_one(OptionList)
        assert " context" in shown_options(screen)
        await pilot.press("end")
        assert " draft model" in shown_options(screen)
        assert screen.query_one(PlanTable).region.bottom <= size[1]
        assert screen.query_one("#plan-side").display == (size == HUGE)
        first = screen.query_one("#plan-report", LinesView)
        sight = "\n".join(plain(line) for line in first.lines[: first.size.height])
        assert "largest context" in sight
        assert options.region.right <= first.region.x


async def test_the_mouse_chooses_and_turns_options(starter_path: Path, tmp_path: Path) -> None:
    screen = planner(starter_path, tmp_path)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        options = screen.query_one(OptionList)
        right = options.size.width + options.gutter.left - 1
        await pilot.click(OptionList, offset=(5, 2))
        assert options.marked_key == "type_k"
        await pilot.click(OptionList, offset=(right, 2))
        assert "--cache-type-k bf16" in report_of(screen)
        await pilot.click(OptionList, offset=(options.gutter.left + 14, 2))
        assert "--cache-type-k f16" in report_of(screen)
        await pilot.click(OptionList, offset=(5, 1))
        await pilot.click(OptionList, offset=(5, 1))
        assert screen.query_one(Input).has_focus
