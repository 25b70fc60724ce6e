"""A small application around one screen of the planner, and what tests ask of it."""

from pathlib import Path, PurePath
from typing import ClassVar

from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

import app as kvchat
from app.render.lines import plain
from app.themes import load_themes, theme_variable_defaults
from app.widgets.ink import LinesView
from app.widgets.planner import OptionList, PlanTable
from app.widgets.select_list import SelectList
from engine.configuration import Configuration
from engine.errors import WorkerError
from engine.events import BufferSize
from engine.memory.dry_run import DryRun
from engine.memory.terms import Target
from tests.support.fakes_app import wait_until

STYLES = Path(kvchat.__file__).parent / "styles"


class Host(App[None]):
    """Shows a screen and keeps what it gave."""

    CSS_PATH: ClassVar[list[str | PurePath]] = [
        STYLES / name for name in ("inks.tcss", "chat.tcss", "dialogs.tcss")
    ]

    def __init__(self, screen: Screen[Configuration | None]) -> None:
        super().__init__()
        for theme in load_themes().themes:
            self.register_theme(theme)
        self.theme = "kvchat-dark"
        self.shown = screen
        self.given: list[Configuration | None] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_variable_defaults(self.available_themes.get(self.theme))

    def on_mount(self) -> None:
        self.push_screen(self.shown, self.given.append)


class SilentDryRun(DryRun):
    """A dry run that refuses, without a process."""

    is_closed = False

    def measure(
        self, configuration: Configuration, target: Target = "kvchat"
    ) -> tuple[BufferSize, ...]:
        raise WorkerError("not in this test")

    def close(self) -> None:
        self.is_closed = True


def report_of(screen: Screen[Configuration | None], name: str = "") -> str:
    """The text of a report."""
    query = screen.query(LinesView) if not name else screen.query(name).results(LinesView)
    return "\n".join(plain(line) for report in query for line in report.lines)


def shown_options(screen: Screen[Configuration | None]) -> str:
    """The text of the options and their help."""
    texts = (screen.query_one(OptionList).lines, screen.query_one("#plan-help", LinesView).lines)
    return "\n".join(plain(line) for lines in texts for line in lines)


def table_of(screen: Screen[Configuration | None]) -> str:
    """The text of the table."""
    return "\n".join(plain(line) for line in screen.query_one(PlanTable).lines)


async def go_to(pilot: Pilot[None], screen: Screen[Configuration | None], name: str) -> None:
    """Highlight an option by its name."""
    screen.query_one(OptionList).mark(name)
    await pilot.pause()


async def shows(pilot: Pilot[None], screen: Screen[Configuration | None], text: str) -> None:
    """Wait until a report shows a text."""
    await wait_until(pilot, lambda: text in report_of(screen))


def dialog_text(screen: Screen[object]) -> str:
    """The title, the notes and the rows of a list to pick from."""
    notes = [str(static.render()) for static in screen.query(Static)]
    rows = [plain(line) for rows in screen.query(SelectList) for line in rows.lines]
    return "\n".join((*notes, *rows))
