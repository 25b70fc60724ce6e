"""Completion in the composer: commands after a slash, files after an `@`."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from app.bindings import Command, command_named, completions
from app.chat.attachments import file_names, matching, mention
from app.matching import TYPED_COMMAND
from app.render.lines import Line, Run, clipped, spread
from app.sanitize import visible
from app.screens.dialogs import in_thread
from app.widgets.composer import Composer
from app.widgets.select_list import Row, SelectList
from engine.validation import did_you_mean

Commands = Callable[[], Iterable[Command]]
"""Everything that can be commanded now."""
MAX_ROWS = 40
"""Completions that are listed; typing narrows them down."""
NAMES_AGE_S = 5.0
"""Age from which the names of files are read again: a large folder takes a moment."""
NAME_WIDTH = 24
_WITH_WORDS = re.compile(r"/([a-z-]+) +(\S.*)", re.IGNORECASE)
_FILE = re.compile(r'(?:^|(?<=[\s(]))@"?([^\s"@]*)$')


class Completion:
    """Lists completions of the word at the cursor in `rows`, which never have the focus.

    `commands` returns what can be written after a slash; `folder` has the files.
    """

    def __init__(self, composer: Composer, rows: SelectList, commands: Commands) -> None:
        self.folder = Path()
        self.is_open = False
        self._composer = composer
        self._rows = rows
        self._commands = commands
        self._listed_for = ""
        """The text that the list belongs to."""
        self._closed_at: str | None = None
        """The text for which the user closed the list."""
        self._names: Sequence[str] = ()
        self._names_at = float("-inf")

    def refresh(self) -> None:
        """Show what the word before the cursor may become, or close the list."""
        text = self._listed_for = self._composer.text
        rows: list[Row[Command | str]] = []
        if text != self._closed_at and self._composer.has_focus:
            self._closed_at = None
            if (match := TYPED_COMMAND.fullmatch(text)) is not None:
                rows = self._command_rows(match[1])
            elif (match := self._file_at_cursor()) is not None:
                rows = self._file_rows(match[1])
        self._rows.display = self.is_open = bool(rows)
        if rows:
            self._rows.show_rows(rows, rows[0].key)

    def _file_at_cursor(self) -> re.Match[str] | None:
        row, column = self._composer.cursor_location
        return _FILE.search(self._composer.document.get_line(row)[:column])

    def move(self, step: int) -> bool:
        """Mark the next completion or the one before; False without a list."""
        if self.is_open:
            self._rows.action_move(step)
        return self.is_open

    def close(self) -> bool:
        """Close the list until the text changes; False without one."""
        was_open = self.is_open
        if was_open:
            self._closed_at = self._composer.text
            self._hide()
        return was_open

    def complete(self) -> bool:
        """Insert the marked completion; False without a list."""
        self._catch_up()
        was_open = self.is_open
        if was_open:
            self._insert(self._rows.marked_key)
        return was_open

    def run(self) -> bool:
        """Insert the marked file, or run the marked or typed command; False for a message."""
        self._catch_up()
        if self.is_open:
            choice = self._rows.marked_key
            if isinstance(choice, Command):
                self._run(choice, choice.run)
            else:
                self._insert(choice)
            return True
        text, commands = self._composer.text.rstrip(), [*self._commands()]
        words = _WITH_WORDS.fullmatch(text)
        command = command_named(commands, words[1]) if words is not None else None
        if words is not None and command is not None and command.run_with is not None:
            self._run(command, partial(command.run_with, words[2]))
            return True
        match = TYPED_COMMAND.fullmatch(text)
        if match is None or not match[1]:
            return False
        command = command_named(commands, match[1])
        if command is not None:
            self._run(command, command.run)
        else:
            hint = did_you_mean(f"/{match[1]}", [f"/{each.name}" for each in commands]) or "."
            self._composer.notify(
                f"There is no command /{match[1]}{hint} To send the text as a message, put a space "
                "before the slash.",
                title="Unknown command",
            )
        return True

    def _catch_up(self) -> None:
        """List the completions of the present text: a key may come before the list follows."""
        if self._listed_for != self._composer.text:
            self.refresh()

    def _run(self, command: Command, run: Callable[[], object]) -> None:
        if command.obstacle:
            self._composer.notify(command.obstacle, title=f"/{command.name}")
            return
        self._hide()
        self._composer.put("")
        # After the key: a screen that a command opens handles the next ones.
        self._composer.call_later(run)

    def _insert(self, choice: object) -> None:
        composer = self._composer
        row, column = composer.cursor_location
        if isinstance(choice, Command):
            composer.put(f"/{choice.name}")
        elif (match := self._file_at_cursor()) is not None:
            start, end = (row, match.start()), (row, column)
            composer.replace(f"{choice} ", start, end, maintain_selection_offset=False)
        self._hide()

    def _hide(self) -> None:
        self._rows.display = self.is_open = False

    def _command_rows(self, typed: str) -> list[Row[Command | str]]:
        found = completions([*self._commands()], typed)
        if not typed:
            found = [command for command in found if command.is_named]
        return [Row(command, partial(_command_line, command)) for command in found[:MAX_ROWS]]

    def _file_rows(self, typed: str) -> list[Row[Command | str]]:
        now = time.monotonic()
        if now - self._names_at > NAMES_AGE_S:
            self._names_at = now  # a folder of another machine may not answer for a minute
            read = partial(file_names, self.folder)
            in_thread(self._rows.screen, "file names", read, self._show_names)
        found = matching(self._names, typed)[:MAX_ROWS]
        if found == [typed]:
            return []
        return [Row(mention(name), partial(_file_line, name)) for name in found]

    def _show_names(self, names: Sequence[str]) -> None:
        self._names = names
        self.refresh()


def _command_line(command: Command, width: int) -> Line:
    style = "muted" if command.obstacle else "accent"
    name = Run(f"{'/' + command.name:<{NAME_WIDTH}}", style)
    return spread((name, Run(command.meaning, "muted")), (Run(command.key, "muted"),), width)


def _file_line(name: str, width: int) -> Line:
    folder, _, last = visible(name).rpartition("/")
    return clipped((Run(last, "accent"), Run(f"  {folder}" if folder else "", "muted")), width)
