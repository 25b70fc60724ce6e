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
QUESTION = "\n\n".join(
    (
        "Summarise what was decided at this meeting, one line for each item.",
        "1. Spring fair. The fair takes place on Saturday 22 April from 10:00 to 16:00 in Mill "
        "Park. Priya Nair has booked twelve stalls at 15 euros each. Tom Field borrows the tents "
        "from the fire brigade.",
        "2. Water in the lower garden. The pipe behind the greenhouse has been leaking since "
        "January. The members agreed to accept the offer of 840 euros. David Cole pays the bill "
        "from the reserve.",
        "3. New members. Four people have asked to join. Anna Weber calls all four on 28 March.",
    )
)

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
    from app.application import KvchatApp, every_binding_id
    from app.opening import ModelRequest
    from app.startup import prepare

    opened = prepare(ModelRequest(model=str(model)), every_binding_id)
    app = KvchatApp(
        opened.controller,
        opened.services,
        model=opened.model,
        symbols=opened.settings.ui.graph_symbols,
        theme=opened.settings.ui.theme,
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
    app.screen.query_one("#composer").load_text(question)
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

    screen = app.screen
    assert isinstance(screen, PlannerScreen)
    screen.open_model(Path(CATALOGUE_MODEL))
    await pilot.pause(1.0)
    assert screen.setup is not None
    asked = replace(screen.setup.configuration, n_ctx=32768, n_cpu_moe=28)
    screen.change(replace(screen.setup, configuration=asked, cards=(CARD,)))
    await pilot.pause(2.0)


if __name__ == "__main__":
    main()
