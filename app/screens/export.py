"""A plan in the formats of other programs: show, copy, save, install."""

from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.clipboard import copy
from app.paths import current_folder, typed_path
from app.render.lines import EMPTY, Line, Run, clipped
from app.render.plan import refusal_lines
from app.render.plan_lists import export_lines, place_line
from app.screens.dialogs import ask_line, confirm
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.select_list import Row, SelectList
from engine.files import is_file
from engine.planning.planner import Plan
from engine.planning.report import export_request
from engine.presets.export import Exported, ExportError, ExportRequest, Format, install, write
from engine.presets.formats import FORMATS

HEIGHTS = [(0, "-low"), (36, "-tall")]


class ExportScreen(ModalScreen[None]):
    """The formats, and the text of the marked one."""

    CSS_PATH: ClassVar[list[str | PurePath]] = ["../styles/planner.tcss", "../styles/export.tcss"]
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="export-close", tooltip="Go back to the plan"),
        Binding("c", "copy", "Copy", id="export-copy", tooltip="Copy the export"),
        Binding("y", "copy", "Copy", id="export-copy-too", show=False, tooltip="Copy the export"),
        Binding("s", "save", "Save", id="export-save", tooltip="Write the export to a file"),
        Binding("i", "install", "Install", id="export-install",
                tooltip="Save the export where the other program looks for it"),
        Binding("j", "app.simulate_key('down')", "Down", id="export-next", show=False,
                tooltip="Show the next format"),
        Binding("k", "app.simulate_key('up')", "Up", id="export-previous", show=False,
                tooltip="Show the previous format"),
        Binding("pageup", "scroll_report(-1)", "Page up", id="export-up",
                priority=True, tooltip="Scroll the export up"),
        Binding("pagedown", "scroll_report(1)", "Page down", id="export-down",
                priority=True, tooltip="Scroll the export down"),
    ]  # fmt: skip

    def __init__(self, plan: Plan, preset: str | None = None) -> None:
        super().__init__()
        self._plan = plan
        self._preset = preset
        self._format: Format = next(iter(FORMATS.values()))
        self._request: ExportRequest = export_request(plan, preset=preset)
        self._exported: Exported | ExportError = self._rendered()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide", id="export"):
            yield Static("export", classes="title", markup=False)
            yield TitleBar(id="export-place")
            with Horizontal(id="export-main"):
                yield SelectList(id="export-formats")
                yield LinesView(id="export-lines")
            yield KeyBar(id="keys")

    def on_mount(self) -> None:
        formats = self.query_one(SelectList)
        formats.show_rows([Row(name, partial(clipped, (Run(name),))) for name in FORMATS])
        formats.focus()
        self._show()

    def on_select_list_marked(self, message: SelectList.Marked) -> None:
        self._format = FORMATS[message.key]
        self._show()

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  Textual's signature
    ) -> bool:
        """Offer what the format can do."""
        found = self._exported
        return action != "install" or (
            isinstance(found, Exported) and found.install_path is not None
        )

    def action_scroll_report(self, pages: int) -> None:
        self.query_one(LinesView).page(pages)

    def action_copy(self) -> None:
        if (found := self._given()) is not None:
            copy(self.app, found.text.rstrip("\n"), self._format.file_name(self._request))

    def action_save(self) -> None:
        if self._given() is None:
            return
        name = self._format.file_name(self._request)
        ask_line(self, "Write the export to this file:", str(current_folder() / name), self._save)

    def action_install(self) -> None:
        found = self._given()
        if found is None or found.install_path is None:
            return
        if self._format.merge is None and is_file(found.install_path):
            self._ask_over(found.install_path, lambda: self._install(found))
        else:
            self._install(found)

    # --- the text ---

    def _rendered(self) -> Exported | ExportError:
        try:
            return self._format.render(self._request)
        except ExportError as error:
            return error

    def _show(self) -> None:
        self._exported = self._rendered()
        self.refresh_bindings()
        text = self.query_one(LinesView)
        text.scroll_home(animate=False)
        text.present(self._lines)
        self.query_one(TitleBar).present(partial(clipped, self._target()))
        self.query_one(".title", Static).update(f"export to {self._format.title}")

    def _lines(self, width: int) -> list[Line]:
        found = self._exported
        if isinstance(found, ExportError):
            return refusal_lines(found.title, str(found), width)
        return export_lines(self._format, self._request, found, width)

    def _target(self) -> Line:
        found = self._exported
        if isinstance(found, ExportError):
            return EMPTY
        return place_line(self._format, self._request, found)

    def _given(self) -> Exported | None:
        """The text; a notice explains why there is none."""
        if isinstance(self._exported, Exported):
            return self._exported
        self.notify(str(self._exported), severity="error")
        return None

    # --- writing ---

    def _save(self, name: str) -> None:
        path = typed_path(name)
        if is_file(path):
            self._ask_over(path, lambda: self._write(path))
        else:
            self._write(path)

    def _ask_over(self, path: Path, then: Callable[[], None]) -> None:
        confirm(self, f"{path} already exists. Replace it?", then)

    def _write(self, path: Path) -> None:
        found = self._given()
        if found is None:
            return
        written = write(found, path, replace_existing=True)
        self.notify(f"Saved {', '.join(map(str, written))}")

    def _install(self, found: Exported) -> None:
        path, backup = install(found, self._format, replace_existing=True)
        saved = f"; the old file is saved as {backup.name}" if backup else ""
        self.notify(f"Installed {path}{saved}")
