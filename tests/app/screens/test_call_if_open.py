"""Screens that close while a thread works for them."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.screen import Screen

from app.screens.downloads import FirstRunScreen
from app.screens.models import ModelsScreen
from engine.errors import InstallError
from engine.model.library import ModelEntry
from tests.app.screens.plan_host import Host
from tests.support.fakes_app import wait_until
from tests.support.waiting import PATIENCE_S


class Gate:
    """Holds a thread until it may go on, and records whether it did."""

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

    def install(self, report: Callable[[str], None]) -> Path:
        self.wait()
        try:
            report("half of it")
        except InstallError:
            self.was_ended.set()
            raise
        return Path("starter.gguf")


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
