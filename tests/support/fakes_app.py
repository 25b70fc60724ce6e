"""The full-screen application around a scripted engine, and a wait that never sleeps blindly."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from app.application import KvchatApp
from app.chat.conversation import Conversation
from app.chat.snapshot import PlannedBytes
from app.config import UserSettings
from app.screens.chat import ChatScreen
from app.startup import Services
from app.store.chats import ChatStore
from engine.configuration import Configuration, SamplingSettings
from engine.model.library import ModelEntry
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient
from tests.support.waiting import PATIENCE_S

WIDE = (120, 36)
NARROW = (80, 24)


OPENED: list[ChatStore] = []
"""Stores that a test has opened; they are closed after it."""


def services(tmp_path: Path, *, models: tuple[ModelEntry, ...] = ()) -> Services:
    def install(progress: Callable[[str], None]) -> Path:
        progress("downloading")
        return tmp_path / "starter.gguf"

    def configure(path: Path) -> Configuration:
        return replace(CONFIGURATION, model_path=path)

    return Services(
        configure=configure,
        fit_context=lambda: None,
        planned_bytes=lambda _: PlannedBytes(290 << 20, 100 << 20),
        scan=lambda: models,
        folders=(tmp_path / "models",),
        servers=tuple,
        install_starter=install,
        presets_dir=tmp_path / "presets",
        settings=UserSettings(tmp_path / "config.toml"),
    )


def make_conversation(
    tmp_path: Path,
    script: Script | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    system_prompt: str = "",
) -> tuple[Conversation, ScriptedClient]:
    client = ScriptedClient(script, clock)
    store = ChatStore(tmp_path / "chats.db")
    OPENED.append(store)
    conversation = Conversation(
        client, store, sampling=SamplingSettings(), system_prompt=system_prompt, clock=clock
    )
    return conversation, client


def release_locks(conversation: Conversation) -> None:
    """Let go of the chats whose replies run, as the system does for a process that was killed."""
    for reply in conversation.running.values():
        if reply.lock is not None:
            reply.lock.close()


def make_app(
    tmp_path: Path, script: Script | None = None, *, has_model: bool = True
) -> tuple[KvchatApp, ScriptedClient]:
    conversation, client = make_conversation(tmp_path, script)
    configuration = CONFIGURATION if has_model else None
    return KvchatApp(conversation, services(tmp_path), configuration=configuration), client


async def wait_until(pilot: Pilot[None], predicate: Callable[[], object]) -> None:
    """Let the application run until something is so, and fail when it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        await pilot.pause()
        await asyncio.sleep(0.01)


async def ready(pilot: Pilot[None]) -> ChatScreen:
    """The chat screen with its model loaded."""
    app = pilot.app
    await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen))
    screen = app.screen
    assert isinstance(screen, ChatScreen)
    await wait_until(pilot, lambda: screen.conversation.loaded is not None)
    return screen


async def ask(pilot: Pilot[None], screen: ChatScreen, text: str) -> None:
    """Write a text into the composer and send it."""
    screen.composer.focus()
    screen.composer.put(text)
    await pilot.press("enter")


async def answered(pilot: Pilot[None], screen: ChatScreen, text: str) -> None:
    """Ask and wait for the whole reply."""
    await ask(pilot, screen, text)
    await wait_until(pilot, lambda: not screen.conversation.is_replying)
    await wait_until(pilot, lambda: not screen.has_unpainted_text)


@asynccontextmanager
async def opened(
    tmp_path: Path,
    script: Script | None = None,
    *,
    size: tuple[int, int] = WIDE,
    has_model: bool = True,
) -> AsyncIterator[tuple[KvchatApp, ScriptedClient, Pilot[None], ChatScreen]]:
    """The chat with its model loaded."""
    app, client = make_app(tmp_path, script, has_model=has_model)
    async with app.run_test(size=size) as pilot:
        yield app, client, pilot, await ready(pilot)
