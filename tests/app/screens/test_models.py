"""The list of models while the folders are looked through."""

import threading
from pathlib import Path

import pytest
from textual.app import App
from textual.widgets import Static

from app.screens.models import ModelsScreen
from app.widgets.select_list import SelectList
from engine.model.library import LibraryScan, ModelEntry
from tests.fakes_app import make_app, ready, wait_until


class SlowScan(LibraryScan):
    """Stops in the middle until it may go on."""

    def __init__(self) -> None:
        super().__init__([], None)
        self.go_on = threading.Event()

    def __call__(self) -> list[ModelEntry]:
        self.n_done, self.n_all = 12, 200
        self.go_on.wait(10)
        return []


@pytest.mark.parametrize("n_models", [0, 1, 40])
async def test_its_keys_are_seen_in_the_smallest_window(tmp_path: Path, n_models: int) -> None:
    folders = [Path(f"/home/someone/of/a/long/name/{name}/models") for name in "abcdefgh"]
    path = folders[0] / "model.gguf"
    entries = [
        ModelEntry(
            path=path,
            name="model",
            architecture="llama",
            file_type="Q4_1",
            n_ctx_train=8192,
            nbytes=1,
        )
    ] * n_models
    screen = ModelsScreen(lambda: entries, folders, None, add=lambda: None)
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(60, 16)) as pilot:
        await ready(pilot)
        app.push_screen(screen)
        await wait_until(pilot, lambda: screen.is_mounted and screen.query("#where"))
        where = screen.query_one("#where", Static)
        await wait_until(pilot, lambda: "looking" not in str(where.render()))
        await pilot.pause()
        keys = screen.query_one("#models-keys", Static)
        assert "esc stays" in str(keys.render())
        dialog = screen.query_one(".dialog")
        assert dialog.content_region.contains_region(keys.region)
        assert keys.size.height >= 2
        assert screen.query_one(SelectList).size.height == min(n_models, 6)


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
        assert screen.query_one(SelectList).rows == []
