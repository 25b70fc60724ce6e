"""Writes one chat to a file that the user names."""

import re
from functools import partial
from pathlib import Path

from textual.widget import Widget

from app.screens.ask import AskLine, AskYes
from app.store.chats import ChatStore
from app.store.records import Chat
from engine.errors import EngineError

MAX_NAME = 40
"""Characters of a title that the file is called by."""


def file_name(title: str) -> str:
    """Give the name of a file for a chat: its title, as far as a file may be called so."""
    words = re.sub(r"[^\w.-]+", "-", title).strip("-.")[:MAX_NAME].rstrip("-.")
    return f"{words or 'chat'}.md"


class ChatExport:
    """Asks where to, and whether a file there may be replaced; then writes."""

    def __init__(self, screen: Widget, store: ChatStore, chat: Chat) -> None:
        self._app = screen.app
        self._store = store
        self._chat = chat

    def ask(self) -> None:
        """Ask for the file."""
        question = (
            "Write the chat to this file. Its ending says how: .md is the shown branch to read, "
            ".jsonl is everything and can be imported"
        )
        self._app.push_screen(AskLine(question, file_name(self._chat.title)), self._named)

    def _named(self, name: str | None) -> None:
        if name is None:
            return
        path = Path(name).expanduser()
        if not path.exists():
            self._begin_to_write(path)
            return

        def replace(is_sure: bool | None) -> None:
            if is_sure:
                self._begin_to_write(path)

        self._app.push_screen(AskYes(f"{path} exists. Replace it?"), replace)

    def _begin_to_write(self, path: Path) -> None:
        # Of the application, so that it goes on when the list is closed.
        self._app.run_worker(partial(self._write, path), thread=True, group="export")

    def _write(self, path: Path) -> None:
        """Write the file and tell what came of it; a thread's work, as a chat may be long."""
        from app.history_files.files import format_of, text_of, write_history

        form = format_of(path)
        try:
            tree = self._store.tree(self._chat.id)
            pieces = text_of([tree], form, all_branches=form == "jsonl")
            write_history(path, pieces, replace=True)
        except EngineError as error:
            self._app.notify(str(error), title=error.title, severity="error")
        else:
            self._app.notify(f"Written: {path}")
