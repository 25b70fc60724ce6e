"""What leaves for llama-server: looked at, copied, saved."""

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.clipboard import copy
from app.planning.plan import Plan, warnings_of
from app.render.lines import Line, Run
from app.render.plan import command_lines, warning_lines
from app.screens.ask import AskLine, AskYes
from app.widgets.plan_report import PlanReport
from engine.presets.export.llama_server import remarks


class ExportScreen(ModalScreen[None]):
    """Shows the command of llama-server for a plan."""

    CSS_PATH = "../styles/planner.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="export-close", tooltip="Back to the plan"),
        Binding("c,y", "copy", "Copy", id="export-copy", tooltip="Copy the command, in one line"),
        Binding("s", "save", "Save", id="export-save", tooltip="Write it to a script"),
        Binding("pageup", "scroll_report(-1)", "Up", id="export-up", tooltip="A page up"),
        Binding("pagedown", "scroll_report(1)", "Down", id="export-down", tooltip="A page down"),
    ]

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        self._remarks = [
            *remarks(plan.setup.configuration, plan.model), *warnings_of(plan)
        ]  # fmt: skip

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide", id="export"):
            yield Static("export to llama-server", classes="title", markup=False)
            yield PlanReport(id="export-lines")
            yield Static("c copies · s saves to a file · esc closes", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(PlanReport).present(self._lines)

    def _lines(self, width: int) -> list[Line]:
        notes = [line for text in self._remarks for line in warning_lines(text, width)]
        command = command_lines(self._plan, width)
        return [*command, (Run(""),), *notes] if notes else command

    def action_scroll_report(self, pages: int) -> None:
        """Scroll by pages."""
        report = self.query_one(PlanReport)
        report.scroll_relative(y=pages * (report.size.height - 1), animate=False)

    def action_copy(self) -> None:
        """Copy the command in one line."""
        copy(self.app, self._plan.command_line, "the command")

    def action_save(self) -> None:
        """Ask for a file, and whether one that is there may go."""
        name = f"{self._plan.model.file.path.stem}-server.sh"
        self.app.push_screen(AskLine("Write the command to", str(Path.cwd() / name)), self._save)

    def _save(self, name: str | None) -> None:
        if not name:
            return
        path = Path(name).expanduser()
        if not path.exists():
            self._write(path)
            return

        def overwrite(is_sure: bool | None) -> None:
            if is_sure:
                self._write(path)

        self.app.push_screen(AskYes(f"{path} is there already: write over it?"), overwrite)

    def _write(self, path: Path) -> None:
        comments = "".join(f"# {text}\n" for text in self._remarks)
        try:
            path.write_text(f"#!/bin/sh\n{comments}exec {self._plan.command_line}\n", "utf-8")
            path.chmod(0o755)
        except OSError as error:
            reason = error.strerror or str(error)
            self.notify(f"{path} cannot be written: {reason}", severity="error", markup=False)
        else:
            self.notify(f"Saved {path}", markup=False)
