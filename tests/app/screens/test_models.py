"""The list of models while the folders are looked through."""

import threading
from pathlib import Path

from textual.app import App
from textual.widgets import OptionList, Static

from app.screens.models import ModelsScreen
from engine.model.library import LibraryScan, ModelEntry
from tests.fakes_app import wait_until


class SlowScan(LibraryScan):
    """Stops in the middle until it may go on."""

    def __init__(self) -> None:
        super().__init__([], None)
        self.go_on = threading.Event()

    def __call__(self) -> list[ModelEntry]:
        self.n_done, self.n_all = 12, 200
        self.go_on.wait(10)
        return []


async def test_a_long_scan_says_how_far_it_is_until_it_ends() -> None:
    scan = SlowScan()
    app: App[None] = App()
    async with app.run_test() as pilot:
        screen = ModelsScreen(scan, [Path("/models")], None)
        app.push_screen(screen)
        await wait_until(pilot, lambda: screen.is_mounted and screen.query("#where"))
        where = screen.query_one("#where", Static)
        await wait_until(pilot, lambda: "looking … 12 of 200 files" in str(where.render()))
        scan.go_on.set()
        await wait_until(pilot, lambda: "no model was found in /models" in str(where.render()))
        await pilot.pause(0.3)
        assert "looking" not in str(where.render())
        assert screen.query_one(OptionList).option_count == 0
