"""Makes the pictures of the README: the real application on the real starter model.

python scripts/screenshots.py MODEL [FOLDER]
"""

import asyncio
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from app.application import KvchatApp

SIZE = (120, 36)
CATALOGUE_MODEL, CARD = "qwen3-30b-a3b", "GeForce RTX 4070"
QUESTION = (
    "Write the steps of this recipe as a list, one step on each line.\n\n"
    "Mix 200 grams of flour with two eggs and a pinch of salt. Add 300 millilitres of milk and "
    "stir until the batter is smooth. Let the batter rest for twenty minutes. Melt a little butter "
    "in a hot pan. Pour a ladle of batter into the pan and turn the pancake when its edges "
    "are brown."
)
"""Answered from the question itself: look-ups have something to draft."""
SECOND_QUESTION = "Name three things to bring to a picnic in spring."


def main() -> None:
    """Run the application in a home of its own and save what it paints."""
    model = Path(sys.argv[1]).resolve()
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs").resolve()
    with tempfile.TemporaryDirectory() as home:
        for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(home) / kind)
        config = Path(home) / "CONFIG" / "kvchat" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("[chat]\ntemperature = 0.0\nmax_tokens = 160\n")
        asyncio.run(paint(model, folder))


async def paint(model: Path, folder: Path) -> None:
    """Ask the question, wait for the reply, and paint chat, comparison, kept states and planner."""
    from app.application import KvchatApp
    from app.opening import ModelRequest
    from app.startup import prepare

    opened = prepare(ModelRequest(model=str(model)))
    app = KvchatApp(
        opened.controller,
        opened.services,
        model=opened.model,
    )
    folder.mkdir(exist_ok=True)
    async with app.run_test(size=SIZE) as pilot:
        while not opened.controller.client.is_alive:
            await pilot.pause(0.2)
        await pilot.pause(0.5)
        await ask(app, pilot, QUESTION)
        app.save_screenshot("chat.svg", str(folder))
        await compare(app, pilot)
        app.save_screenshot("compare.svg", str(folder))
        await pilot.press("escape")
        await pilot.pause(0.5)
        await pilot.press("ctrl+n")
        await ask(app, pilot, SECOND_QUESTION)
        await pilot.press("f6")
        await pilot.pause(1.5)
        app.save_screenshot("cache.svg", str(folder))
        await pilot.press("escape")
        await pilot.pause(0.5)
        await pilot.press("f2")
        await pilot.pause(2.0)
        await show_plan(app, pilot)
        app.save_screenshot("planner.svg", str(folder))
    opened.close()


async def ask(app: "KvchatApp", pilot: "Pilot[None]", question: str) -> None:
    """Ask in the chat that is shown, and wait for the whole reply."""
    from textual.widgets import TextArea

    app.screen.query_one("#composer", TextArea).load_text(question)
    await pilot.press("enter")
    await pilot.pause(1.0)
    while app.controller.client.is_busy:
        await pilot.pause(0.2)
    await pilot.pause(1.5)


async def compare(app: "KvchatApp", pilot: "Pilot[None]") -> None:
    """Answer the question in two ways, three times each."""
    from app.screens.compare import CompareScreen

    await pilot.press("f4")
    await pilot.pause(0.5)
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    await pilot.press("enter")
    await pilot.pause(0.5)
    await pilot.press("r", "r")
    while screen.comparison.is_running:
        await pilot.pause(0.2)
    await pilot.pause(0.5)


async def show_plan(app: "KvchatApp", pilot: "Pilot[None]") -> None:
    """Plan a model of the catalogue for a card, as the screen itself would."""
    from app.screens.planner import PlannerScreen
    from engine.planning.machine import PlannedMachine

    screen = app.screen
    assert isinstance(screen, PlannerScreen)
    screen.open_model(Path(CATALOGUE_MODEL))
    await pilot.pause(1.0)
    assert screen.setup is not None
    asked = replace(screen.setup.configuration, n_ctx=32768, n_cpu_moe=28)
    machine = PlannedMachine(cards=(CARD,))
    screen.change(replace(screen.setup, configuration=asked, machine=machine))
    await pilot.pause(2.0)


if __name__ == "__main__":
    main()
