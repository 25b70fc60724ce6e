"""Make the pictures of the pages with the real application: docs/chat.svg and docs/planner.svg.

python scripts/pictures.py MODEL [FOLDER]
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

SIZE, PLANNER_SIZE = (120, 36), (120, 44)
PLANNED_MODEL, CARD, RAM_GIB = "qwen3-30b-a3b", "GeForce RTX 4070", 64
CONTEXT, N_CPU_MOE = 32768, 28
QUESTIONS = (
    "Write the steps of this recipe as a list, one step on each line.\n\n"
    "Mix 200 grams of flour with two eggs and a pinch of salt. Add 300 millilitres of milk and "
    "stir until the batter is smooth. Let the batter rest for twenty minutes. Melt a little butter "
    "in a hot pan.",
    "Repeat the list.",
)
"""The answers repeat the text, so the suffix predictor has something to draft."""
SETTINGS = "[chat]\ntemperature = 0.0\nmax_tokens = 160\n"


def main() -> None:
    """Run the application with a fresh home and save both pictures."""
    model = Path(sys.argv[1]).resolve()
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs").resolve()
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(home) / kind)
        config = Path(home) / "CONFIG" / "kvchat" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(SETTINGS)
        asyncio.run(paint(model, folder))


async def paint(model: Path, folder: Path) -> None:
    """Save the chat after two replies, then the plan of a catalogue model for a card."""
    from app.application import KvchatApp
    from app.opening import ModelRequest
    from app.startup import prepare

    opened = prepare(ModelRequest(model=str(model)))
    app = KvchatApp(opened.conversation, opened.services, model=opened.model)
    async with app.run_test(size=SIZE) as pilot:
        while not opened.conversation.client.is_alive:
            await pilot.pause(0.2)
        await pilot.pause(1.0)
        for question in QUESTIONS:
            await ask(app, pilot, question)
        app.save_screenshot("chat.svg", str(folder))
        await pilot.resize_terminal(*PLANNER_SIZE)
        await pilot.press("f2")
        await pilot.pause(2.0)
        await show_plan(app, pilot)
        app.save_screenshot("planner.svg", str(folder))
    opened.close()


async def ask(app: "KvchatApp", pilot: "Pilot[None]", question: str) -> None:
    """Send a question and wait for the whole reply."""
    from textual.widgets import TextArea

    app.screen.query_one("#composer", TextArea).load_text(question)
    await pilot.press("enter")
    await pilot.pause(1.0)
    while app.conversation.client.is_busy:
        await pilot.pause(0.2)
    await pilot.pause(1.5)


async def show_plan(app: "KvchatApp", pilot: "Pilot[None]") -> None:
    """Plan the catalogue model for a machine with known sizes."""
    from app.screens.planner import PlannerScreen
    from engine.memory.units import GIB
    from engine.planning.machine import PlannedMachine

    screen = app.screen
    assert isinstance(screen, PlannerScreen)
    screen.open_model(Path(PLANNED_MODEL))
    await pilot.pause(1.0)
    assert screen.setup is not None
    configuration = replace(screen.setup.configuration, n_ctx=CONTEXT, n_cpu_moe=N_CPU_MOE)
    machine = PlannedMachine(cards=(CARD,), ram_bytes=RAM_GIB * GIB)
    screen.change(replace(screen.setup, configuration=configuration, machine=machine))
    await pilot.pause(2.0)


if __name__ == "__main__":
    main()
