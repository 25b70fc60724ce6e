"""What the chat leads on to, with the real planner and presets screens."""

from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from app.application import KvchatApp
from app.screens.chat import ChatScreen
from app.screens.planner import PlannerScreen
from app.screens.presets import PresetsScreen
from app.widgets.select_list import SelectList
from tests.support.fakes_app import WIDE, make_conversation, ready, services, wait_until
from tests.support.fakes_client import CONFIGURATION, ScriptedClient


def on_real_model(tmp_path: Path, model: Path) -> tuple[KvchatApp, ScriptedClient]:
    conversation, client = make_conversation(tmp_path)
    configuration = replace(CONFIGURATION, model_path=model, n_ctx=2048)
    return KvchatApp(conversation, services(tmp_path), configuration=configuration), client


async def test_the_planner_plans_the_loaded_model(tmp_path: Path, starter_path: Path) -> None:
    app, client = on_real_model(tmp_path, starter_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("f2")
        await wait_until(pilot, lambda: isinstance(app.screen, PlannerScreen))
        planner = app.screen
        assert isinstance(planner, PlannerScreen)
        await wait_until(pilot, lambda: planner.plan is not None)
        await pilot.press("l")
        await wait_until(pilot, lambda: len(client.loads) == 2)
        assert isinstance(app.screen, ChatScreen)
        assert client.loads[1].model_path == starter_path
        assert client.loads[1].n_ctx == 2048


async def planner_with_a_plan(pilot: Pilot[None]) -> PlannerScreen:
    await pilot.press("f2")
    await wait_until(pilot, lambda: getattr(pilot.app.screen, "plan", None))
    assert isinstance(pilot.app.screen, PlannerScreen)
    return pilot.app.screen


async def test_the_planner_reopens_with_its_plan(
    tmp_path: Path, starter_path: Path, gemma_path: Path
) -> None:
    app, _ = on_real_model(tmp_path, starter_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        await planner_with_a_plan(pilot)
        await pilot.press("right", "escape")
        await wait_until(pilot, lambda: app.screen is chat)
        planner = await planner_with_a_plan(pilot)
        assert planner.setup is not None
        assert planner.setup.configuration.n_ctx == 3072
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat)
        app.load(replace(CONFIGURATION, model_path=gemma_path, n_ctx=1024))
        planner = await planner_with_a_plan(pilot)
        assert planner.setup is not None
        assert planner.setup.configuration.n_ctx == 1024


async def test_a_preset_sets_the_sampling_of_new_chats(tmp_path: Path, starter_path: Path) -> None:
    app, client = on_real_model(tmp_path, starter_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        await pilot.press("f3")
        await wait_until(pilot, lambda: isinstance(app.screen, PresetsScreen))
        await wait_until(pilot, lambda: app.screen.query_one(SelectList).lines)
        while len(client.loads) < 2:
            await pilot.press("enter")
            await pilot.pause()
        assert client.loads[1].model_path == starter_path
        assert screen.conversation.history.sampling == client.loads[1].sampling
