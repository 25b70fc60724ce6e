"""kvchat as it is, which beside that answers probes and writes down what its store promised.

The key `PROBE` is answered once everything that was pressed before it is handled and painted, by
an application program command (ESC _) that names the screen in front and what has the focus.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
from textual import events
from textual.app import ScreenStackError
from textual.message_pump import MessagePump

import app.startup
from app.application import KvchatApp
from app.chat.reply import RunningReply
from app.chat.spans import TokenSpan
from app.cli.main import main
from engine.events import TokensCommitted
from engine.process.client import WorkerClient
from walker import JOURNAL
from walker.journal import Journal
from walker.kills import aim_in_app
from walker.promises import PromisingStore

PROBE = "f35"
PAINTED_S = 0.02
"""A screen paints what has changed sixty times a second."""
PATIENCE_S = 12.0
SHOWN = 80
"""Characters of the composer that are told."""
NOTED_S = 0.3
"""Between two notes of what a reply's text is so far."""


def watch() -> None:
    """Let the store and the application tell what they do."""
    journal = Journal(Path(os.environ[JOURNAL]))

    def promising_store(path: Path, *, patience_s: float | None = None) -> PromisingStore:
        return PromisingStore(path, journal, patience_s=patience_s)

    setattr(app.startup, "ChatStore", promising_store)  # noqa: B010  a name of another module
    _note_streams(journal)
    aim_in_app(journal, _worker_pid)
    defaults = WorkerClient.__init__.__kwdefaults__
    assert defaults is not None
    defaults["command"] = (sys.executable, "-P", "-m", "walker.worker")
    on_event = KvchatApp.on_event
    answers: set[asyncio.Task[None]] = set()

    async def on_event_or_probe(self: KvchatApp, event: events.Event) -> None:
        if isinstance(event, events.Key) and event.key == PROBE:
            task = asyncio.create_task(_answer(self))
            answers.add(task)
            task.add_done_callback(answers.discard)
        else:
            await on_event(self, event)

    setattr(KvchatApp, "on_event", on_event_or_probe)  # noqa: B010  a method of another class


def _worker_pid() -> int | None:
    return next((child.pid for child in psutil.Process().children()), None)


def _note_streams(journal: Journal) -> None:
    """Write down what a reply shows, so that it can be looked for after a kill."""
    add = RunningReply.add
    noted: dict[int, float] = {}

    def add_and_note(self: RunningReply, event: TokensCommitted) -> list[TokenSpan]:
        added = add(self, event)
        now = time.monotonic()
        if now - noted.get(self.message_id, 0.0) > NOTED_S:
            noted[self.message_id] = now
            journal.tell("streamed", id=self.message_id, text=self.text)
        return added

    RunningReply.add = add_and_note  # type: ignore[method-assign]


async def _answer(application: KvchatApp) -> None:
    with suppress(ScreenStackError):  # it ends meanwhile
        await _answer_screen(application)


async def _answer_screen(application: KvchatApp) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    quiet = 0
    while quiet < 3 and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0)
        quiet = 0 if any(map(_is_busy, _pumps(application))) else quiet + 1
    await asyncio.sleep(PAINTED_S)
    screen, driver = application.screen, application._driver
    focused = screen.focused
    shown = {
        "screen": type(screen).__name__,
        "focus": "" if focused is None else focused.id or type(focused).__name__,
        "n_screens": len(application.screen_stack),
        "written": application.chat.composer.text[:SHOWN],
        "n_waiting": len(application.chat.outbox.queue),
        "is_replying": application.conversation.is_replying,
        "is_quiet": quiet > 0,
    }
    if driver is not None:
        driver.write(f"\x1b_{json.dumps(shown)}\x1b\\")
        driver.flush()


def _pumps(application: KvchatApp) -> list[MessagePump]:
    focused = application.focused
    return [application, application.screen, *([focused] if focused is not None else [])]


def _is_busy(pump: MessagePump) -> bool:
    return not pump._message_queue.empty()


if __name__ == "__main__":
    watch()
    main()
