"""A plan in the formats of other programs: show, copy, save, install."""

from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType

from app.clipboard import copy
from app.paths import current_folder, typed_path
from app.render.export import export_lines, target_line
from app.render.lines import Line, Run, clipped
from app.render.plan import refusal_lines
from app.screens.dialogs import ask_line, confirm
from app.screens.list_detail import ListDetail
from app.widgets.bars import TitleBar
from app.widgets.ink import LinesView
from app.widgets.select_list import Row
from engine.files import is_file
from engine.planning.planner import Plan
from engine.planning.report import export_request
from engine.presets.export import Exported, ExportError, Format, install, write
from engine.presets.formats import FORMATS

LIST_WIDTH = 24


class ExportScreen(ListDetail[None]):
    """The formats, and the text of the highlighted one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy", "Copy", id="export-copy", tooltip="Copy the export"),
        Binding("y", "copy", "Copy", id="export-copy", show=False),
        Binding("s", "save", "Save", id="export-save", tooltip="Write the export to a file"),
        Binding("i", "install", "Install", id="export-install",
                tooltip="Save the export where the other program looks for it"),
    ]  # fmt: skip

    def __init__(self, plan: Plan, preset: str | None = None) -> None:
        super().__init__()
        self._request = export_request(plan, preset=preset)
        self._choose(next(iter(FORMATS)))

    def _choose(self, name: str) -> None:
        self._format: Format = FORMATS[name]
        self._exported: Exported | ExportError
        try:
            self._exported = self._format.render(self._request)
        except ExportError as error:
            self._exported = error

    def on_mount(self) -> None:
        self.rows.styles.width = LIST_WIDTH
        self.rows.show_rows([Row.of(name, Run(name)) for name in FORMATS])
        self.show_marked()

    def show_marked(self) -> None:
        self._choose(str(self.rows.marked_key))
        self.refresh_bindings()
        title = target_line(self._format, self._request, self._exported)
        self.query_one(TitleBar).present(partial(clipped, title))
        text = self.query_one(LinesView)
        text.scroll_home(animate=False)
        text.present(self._lines)

    def _lines(self, width: int) -> list[Line]:
        found = self._exported
        if isinstance(found, ExportError):
            return refusal_lines(found.title, str(found), width)
        return export_lines(self._format, self._request, found, width)

    @property
    def install_path(self) -> Path | None:
        """Path where the other program looks for the export; None if it has none."""
        found = self._exported
        return found.install_path if isinstance(found, Exported) else None

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  Textual's signature
    ) -> bool:
        """Offer the installation only if the format has a path for it."""
        return action != "install" or self.install_path is not None

    def _text(self) -> Exported | None:
        """The export; a notice explains why there is none."""
        if isinstance(self._exported, Exported):
            return self._exported
        self.notify(str(self._exported), severity="error")
        return None

    def action_copy(self) -> None:
        if (found := self._text()) is not None:
            copy(self.app, found.text.rstrip("\n"), self._format.file_name(self._request))

    def action_save(self) -> None:
        if (found := self._text()) is not None:
            path = current_folder() / self._format.file_name(self._request)
            save = partial(self._save, found)
            ask_line(self, "Write the export to this file:", str(path), save)

    def _save(self, found: Exported, name: str) -> None:
        path = typed_path(name)

        def save() -> None:
            written = write(found, path, replace_existing=True)
            self.notify(f"Saved {', '.join(map(str, written))}")

        if is_file(path):
            confirm(self, f"{path} already exists. Replace it?", save)
        else:
            save()

    def action_install(self) -> None:
        found = self._text()
        if found is None or found.install_path is None:
            return

        def run() -> None:
            path, backup = install(found, self._format, replace_existing=True)
            saved = f"; the old file is saved as {backup.name}" if backup else ""
            self.notify(f"Installed {path}{saved}")

        if self._format.merge is None and is_file(found.install_path):
            confirm(self, f"{found.install_path} already exists. Replace it?", run)
        else:
            run()
