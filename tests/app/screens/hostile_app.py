"""The full-screen application on the terminal it is started in, every text of it hostile.

`python -m tests.app.screens.hostile_app FOLDER MODEL` shows the chat and every other screen once.
"""

import sys
from pathlib import Path

from textual.pilot import Pilot
from textual.theme import Theme
from textual.widgets import Input

from app.sanitize import close_terminal
from engine.events import Failed, TiersChanged
from tests.app.cli.terminals import HOSTILE
from tests.app.screens.test_every_screen import SCREENS, Sources, leave, report, show
from tests.support.fakes_app import ask, make_app, ready, wait_until
from tests.support.fakes_client import Script


def main(folder: Path, model: Path) -> None:
    """Show every screen, and leave."""
    close_terminal()
    application, client = make_app(folder, Script(replies=(f"{HOSTILE}\n" * 9,)))
    application.register_theme(Theme(HOSTILE, primary="#336699"))

    async def drive(pilot: Pilot[object]) -> None:
        chat = await ready(pilot)
        await ask(pilot, chat, HOSTILE)
        await wait_until(pilot, lambda: "owned" in chat.transcript.text)
        history = chat.conversation.history
        await wait_until(pilot, lambda: history.chat)
        assert history.chat is not None
        chat_id = history.chat.id
        history.store.update_chat(chat_id, title=HOSTILE, system_prompt=HOSTILE)
        chat.conversation.history.refresh()
        client.emit(Failed(HOSTILE, HOSTILE))
        client.emit(TiersChanged(report(HOSTILE, chat_id)))
        application.notify(HOSTILE, title=HOSTILE)
        for name in ("CommandPalette", *SCREENS):
            await show(pilot, name, Sources(application, model, folder, HOSTILE))
            for line in application.screen.query(Input):
                line.value = HOSTILE
            await pilot.pause()
            await leave(pilot, name)
        application.exit()

    application.run(auto_pilot=drive)
    sys.exit(application.return_code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
