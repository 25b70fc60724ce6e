"""Screens that close while a thread works for them."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual import work
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from app.screens.downloads import FirstRunScreen
from app.screens.models import ModelsScreen
from app.threads import call_if_open, is_open
from engine.errors import InstallError
from engine.model.library import ModelEntry
from tests.app.screens.plan_host import Host
from tests.support.fakes_app import wait_until
from tests.support.waiting import PATIENCE_S


class Gate:
    """Holds a thread until it may go on, and tells whether it did."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.go_on = threading.Event()
        self.was_ended = threading.Event()

    def wait(self) -> None:
        self.is_reached.set()
        assert self.go_on.wait(PATIENCE_S)

    def scan(self) -> list[ModelEntry]:
        self.wait()
        return []

    def look(self) -> Path:
        self.wait()
        return Path("found.gguf")

    def install(self, say: Callable[[str], None]) -> Path:
        self.wait()
        try:
            say("half of it")
        except InstallError:
            self.was_ended.set()
            raise
        return Path("starter.gguf")


class Told(ModalScreen[None]):
    """Shows what a thread tells it."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.told: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static("")

    @work(thread=True, exclusive=True)
    def tell(self, text: str) -> None:
        self.gate.wait()
        call_if_open(self, self._take, text)

    def _take(self, text: str) -> None:
        self.query_one(Static).update(text)
        self.told.append(text)


async def opened(pilot: Pilot[None], screen: Screen[Any]) -> None:
    pilot.app.push_screen(screen)
    await wait_until(pilot, lambda: screen.is_mounted)


async def test_what_a_thread_hands_back_is_taken_while_the_screen_is_open() -> None:
    gate = Gate()
    async with App[None]().run_test() as pilot:
        screen = Told(gate)
        await opened(pilot, screen)
        screen.tell("found")
        gate.go_on.set()
        await wait_until(pilot, lambda: screen.told == ["found"])


async def test_only_the_last_of_exclusive_workers_is_taken() -> None:
    gate = Gate()
    async with App[None]().run_test() as pilot:
        screen = Told(gate)
        await opened(pilot, screen)
        screen.tell("first")
        await wait_until(pilot, gate.is_reached.is_set)
        screen.tell("second")
        gate.go_on.set()
        await wait_until(pilot, lambda: screen.told)
        await pilot.app.workers.wait_for_complete()
        assert screen.told == ["second"]


async def test_a_screen_that_has_lost_its_widgets_is_not_open_though_still_attached() -> None:
    async with App[None]().run_test() as pilot:
        screen = Told(Gate())
        await opened(pilot, screen)
        assert is_open(screen)
        screen.dismiss(None)
        seen = set()
        for _ in range(100):
            seen.add((screen.is_attached, bool(screen.children)))
            assert not is_open(screen)
            await asyncio.sleep(0)
        assert (True, False) in seen


async def test_what_arrives_while_a_screen_loses_its_widgets_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    gate.go_on.set()
    held: list[Callable[[], None]] = []
    async with App[None]().run_test() as pilot:
        screen = Told(gate)
        await opened(pilot, screen)
        monkeypatch.setattr(pilot.app, "call_from_thread", held.append)
        screen.tell("too late")
        await wait_until(pilot, lambda: held)
        screen.dismiss(None)
        while screen.children:
            await asyncio.sleep(0)
        assert screen.is_attached
        held[0]()
        assert screen.told == []


async def test_what_arrives_while_the_app_ends_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    gate.go_on.set()
    held: list[Callable[[], None]] = []
    widgets: list[int] = []

    class Ending(Told):
        def on_unmount(self) -> None:
            widgets.append(len(self.children))
            held[0]()

    screen = Ending(gate)
    async with App[None]().run_test() as pilot:
        await opened(pilot, screen)
        monkeypatch.setattr(pilot.app, "call_from_thread", held.append)
        screen.tell("too late")
        await wait_until(pilot, lambda: held)
    assert widgets == [0]
    assert screen.told == []


@pytest.mark.parametrize("kind", ["models", "first"])
async def test_a_screen_closes_while_its_thread_works_and_nothing_breaks(kind: str) -> None:
    gate = Gate()
    screens: dict[str, Screen[Any]] = {
        "models": ModelsScreen(gate.scan, [], lambda: None, None),
        "first": FirstRunScreen([], gate.install, lambda: None, title=""),
    }
    screen = screens[kind]
    app = Host(screen)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: screen.is_mounted)
        if kind == "first":
            await pilot.press("i")
        await wait_until(pilot, gate.is_reached.is_set)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.is_attached)
        gate.go_on.set()
        await app.workers.wait_for_complete()
        assert app.given == [None]


async def test_an_install_that_is_left_ends_where_it_stands() -> None:
    gate = Gate()
    screen = FirstRunScreen([], gate.install, lambda: None, title="")
    app = Host(screen)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.screen is screen)
        await pilot.press("i")
        await wait_until(pilot, gate.is_reached.is_set)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is not screen)
        gate.go_on.set()
        await wait_until(pilot, gate.was_ended.is_set)


async def test_looking_for_models_again_does_not_stop_the_screen() -> None:
    gate = Gate()
    screen = FirstRunScreen([], gate.install, gate.look, title="")
    app = Host(screen)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.screen is screen)
        await pilot.press("r")
        await wait_until(pilot, gate.is_reached.is_set)
        assert str(screen.query_one("#progress", Static).render()) == "looking …"
        gate.go_on.set()
        await wait_until(pilot, lambda: app.given == [Path("found.gguf")])
