"""kvchat, which also answers probes and writes a journal of its promises.

The key `PROBE` is answered, once everything pressed before it is handled and painted, by an
application program command (ESC _) with the state of the screen.
"""

import asyncio
import faulthandler
import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
from textual import events
from textual.app import ScreenStackError

import app.startup
from app.application import KvchatApp
from app.chat.reply import RunningReply
from app.chat.spans import TokenSpan
from app.cli.main import main
from engine.events import TokensCommitted
from engine.process.client import WorkerClient
from walker.journal import JOURNAL, Journal
from walker.kills import aim_in_app
from walker.promises import PromisingStore

PROBE = "f35"
PAINTED_S = 0.02
"""A screen paints its changes sixty times a second."""
PATIENCE_S = 12.0
N_SHOWN = 80
"""Characters of the composer's text in an answer."""
STREAMED_EVERY_S = 0.3
"""Time between two journal lines with the text of a reply."""


def watch() -> None:
    """Make the store, the replies, the engine and the application report to the walker."""
    journal = Journal(Path(os.environ[JOURNAL]))
    stacks = Path(f"{os.environ[JOURNAL]}.stacks").open("w", encoding="utf-8")  # noqa: SIM115  stays
    faulthandler.register(signal.SIGUSR1, file=stacks)
    setattr(app.startup, "ChatStore", partial(PromisingStore, journal))  # noqa: B010  its import
    _journal_streams(journal)
    aim_in_app(journal, _worker_pid)
    defaults = WorkerClient.__init__.__kwdefaults__
    assert defaults is not None
    defaults["command"] = (sys.executable, "-P", "-m", "walker.kills")
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


def _journal_streams(journal: Journal) -> None:
    """Journal the text that a reply shows, to look for it after a kill."""
    add = RunningReply.add
    written: dict[int, float] = {}

    def add_and_write(self: RunningReply, event: TokensCommitted) -> list[TokenSpan]:
        added = add(self, event)
        now = time.monotonic()
        if now - written.get(self.message_id, 0.0) > STREAMED_EVERY_S:
            written[self.message_id] = now
            journal.write("streamed", id=self.message_id, text=self.text)
        return added

    RunningReply.add = add_and_write  # type: ignore[method-assign]


async def _answer(application: KvchatApp) -> None:
    with suppress(ScreenStackError):  # kvchat ends meanwhile
        is_quiet = await _settled(application)
        screen, driver = application.screen, application._driver
        focused = screen.focused
        shown = {
            "screen": type(screen).__name__,
            "focus": "" if focused is None else focused.id or type(focused).__name__,
            "written": application.chat.composer.text[:N_SHOWN],
            "n_waiting": len(application.chat.outbox.queue),
            "is_replying": application.conversation.is_replying,
            "is_quiet": is_quiet,
        }
        if driver is not None:
            driver.write(f"\x1b_{json.dumps(shown)}\x1b\\")
            driver.flush()


async def _settled(application: KvchatApp) -> bool:
    """Wait until everything is handled and painted; whether that was in time."""
    deadline = time.monotonic() + PATIENCE_S
    n_quiet = 0
    while n_quiet < 3 and time.monotonic() < deadline:
        await asyncio.sleep(0)
        pumps = (application, application.screen, application.focused)
        is_busy = any(pump is not None and not pump._message_queue.empty() for pump in pumps)
        n_quiet = 0 if is_busy else n_quiet + 1
    await asyncio.sleep(PAINTED_S)
    return n_quiet > 0


if __name__ == "__main__":
    watch()
    main()
