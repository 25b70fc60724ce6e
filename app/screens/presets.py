"""The presets: what each is, and what it comes to here; load, rename, delete, export."""

from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen

from app import paths
from app.config import load_settings, model_folders
from app.planning import user_planner, with_settings
from app.render.lines import Line, Run, clipped, plain, width_of
from app.render.plan import verdict_line
from app.render.plan_lists import preset_lines
from app.sanitize import visible
from app.screens.dialogs import ask, ask_line, confirm, in_thread
from app.screens.models import FilesScreen
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.select_list import MARKER_WIDTH, Row, SelectList
from engine.configuration import Configuration
from engine.events import BufferSize
from engine.files import SETTINGS_BYTES, read_text
from engine.model.library import LibraryScan
from engine.model.ollama import model_name, model_title
from engine.planning.planner import Plan
from engine.planning.request import PlanRequest, setup_of
from engine.presets.library import PresetEntry, delete_preset, list_presets, rename_preset

WIDTHS = [(0, "-narrow"), (100, "-wide"), (160, "-huge")]
MAX_NAME = 30
"""Cells that the longest name of the list gets."""
NO_MODEL = "The preset specifies no model, and no model is loaded: press enter to choose a model."
SERVED = "A server generates the replies, with its own settings: press enter to connect."
FRAME = MARKER_WIDTH + 4
"""Cells of the list beside its names."""


class PresetsScreen(Screen[Configuration | None]):
    """The presets; the result is the configuration of the one to load."""

    CSS_PATH: ClassVar[list[str | PurePath]] = ["../styles/planner.tcss", "../styles/presets.tcss"]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="presets-back",
                tooltip="Go back without loading a preset"),
        Binding("enter", "load", "Load", id="presets-load", priority=True,
                tooltip="Load the model with this preset"),
        Binding("r", "rename", "Rename", id="presets-rename", tooltip="Rename the preset"),
        Binding("d", "delete", "Delete", id="presets-delete", tooltip="Delete the file of the "
                                                                      "preset"),
        Binding("delete", "delete", "Delete", id="presets-delete-too", show=False,
                tooltip="Delete the preset file"),
        Binding("x", "export", "Export", id="presets-export",
                tooltip="Show the preset as arguments of llama-server"),
        Binding("j", "app.simulate_key('down')", "Down", id="presets-down", show=False,
                tooltip="Go to the next preset"),
        Binding("k", "app.simulate_key('up')", "Up", id="presets-up", show=False,
                tooltip="Go to the previous preset"),
        Binding("pageup", "scroll_preview(-1)", "Page up", id="presets-page-up", show=False,
                priority=True, tooltip="Scroll the preview up"),
        Binding("pagedown", "scroll_preview(1)", "Page down", id="presets-page-down", show=False,
                priority=True, tooltip="Scroll the preview down"),
    ]  # fmt: skip

    def __init__(
        self,
        presets_dir: Path,
        current: Configuration | None,
        *,
        measured: tuple[BufferSize, ...] = (),
    ) -> None:
        """List presets.

        Args:
            presets_dir: Folder of the user's presets.
            current: The loaded configuration: its model is used by presets that name none.
            measured: Its buffers, which another load frees.
        """
        super().__init__()
        self._presets_dir = presets_dir
        self._address = None if current is None else current.address
        is_here = current is not None and current.server is None
        self._model = current.model_path if current is not None and is_here else None
        """The loaded model; None for a server, which has its own settings."""
        self._planner = user_planner(loaded=measured)
        self.system_prompt = ""
        """System prompt of the chosen preset; a configuration holds none."""
        self._entries: list[PresetEntry] = []
        self._outcomes: dict[Path, Plan | str] = {}
        """The plan of each preset, or why it has none."""

    def compose(self) -> ComposeResult:
        yield TitleBar(id="presets-title")
        with Horizontal(id="presets-main"):
            yield SelectList(id="presets-list")
            yield LinesView(title="preview", id="presets-preview")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        where = "no model is loaded: kvchat asks for one when you load a preset"
        if self._model is not None:
            where = f"for {visible(model_name(self._model))}"
        elif self._address is not None:
            served = visible(model_title(self._address))
            where = (
                f"{served} runs on a server: kvchat asks for a model on this machine when you "
                "load a preset"
            )
        title = (Run(" presets", "strong"), Run(f"  {where}", "muted"))
        self.query_one(TitleBar).present(partial(clipped, title))
        self.query_one(SelectList).focus()
        self._fill(None)

    # --- the list ---

    def _fill(self, marked: Path | None) -> None:
        self._entries = list_presets(self._presets_dir)
        presets = self.query_one(SelectList)
        lines = [_line(entry) for entry in self._entries]
        presets.styles.width = min(max(map(width_of, lines), default=0), MAX_NAME) + FRAME
        rows = [
            Row(entry.path, partial(clipped, line))
            for entry, line in zip(self._entries, lines, strict=True)
        ]
        presets.show_rows(rows, marked)
        self._show_marked()

    def on_select_list_marked(self) -> None:
        self._show_marked()

    def _show_marked(self) -> None:
        if (entry := self._chosen()) is None:
            return
        self._preview(entry)
        if entry.path not in self._outcomes and entry.problem is None:
            show = partial(self._resolved, entry)
            make = partial(self._outcome_of, entry)
            in_thread(self, "resolve", make, show, lambda error: show(str(error)))

    def on_select_list_picked(self) -> None:
        self.action_load()

    def _chosen(self) -> PresetEntry | None:
        index = self.query_one(SelectList).index
        return self._entries[index] if index < len(self._entries) else None

    # --- the preview ---

    def _preview(self, entry: PresetEntry) -> None:
        try:
            text = read_text(entry.path, limit=SETTINGS_BYTES, errors="replace")
        except OSError as error:
            text = f"# the file cannot be read: {error.strerror or error}"
        outcome = self._outcomes.get(entry.path)
        plan, problem = (outcome, "") if isinstance(outcome, Plan) else (None, outcome or "")
        hint = next((each for each in (NO_MODEL, SERVED) if each == outcome), "")
        problem = "" if hint else problem
        self.query_one(LinesView).present(
            lambda width: preset_lines(entry, text, width, outcome=plan, problem=problem, hint=hint)
        )

    def _outcome_of(self, entry: PresetEntry) -> Plan | str:
        if entry.preset is not None and entry.preset.server is not None:
            return SERVED
        return self._plan_of(entry) if self._has_model(entry) else NO_MODEL

    def _resolved(self, entry: PresetEntry, outcome: Plan | str) -> None:
        self._outcomes[entry.path] = outcome
        if self._chosen() == entry:
            self._preview(entry)

    def _plan_of(self, entry: PresetEntry, model: Path | None = None) -> Plan:
        """The plan of a preset with a model, its own model, or the loaded one."""
        named = None if entry.preset is None else entry.preset.model
        if model is None and named is None:
            model = self._model
        asked = PlanRequest(model=None if model is None else str(model))
        rules = with_settings(entry.preset, load_settings().settings)
        return self._planner.plan(setup_of(asked, self._planner, rules))

    def _has_model(self, entry: PresetEntry) -> bool:
        preset = entry.preset
        if preset is None or preset.server is not None:
            return False
        return self._model is not None or preset.model is not None

    def action_scroll_preview(self, pages: int) -> None:
        self.query_one(LinesView).page(pages)

    # --- what is done with one ---

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_load(self) -> None:
        entry = self._chosen()
        preset = None if entry is None else entry.preset
        if preset is None or preset.server is None:
            self._with_plan(self._load)
            return
        self.system_prompt = preset.system_prompt
        sampling = preset.sampling.settings()
        self.dismiss(
            Configuration.at_server(preset.server, preset.model, sampling, is_trusted=True)
        )

    def _load(self, plan: Plan) -> None:
        configuration = plan.setup.configuration
        entry = self._chosen()
        self.system_prompt = entry.preset.system_prompt if entry and entry.preset else ""
        if plan.fits or plan.setup.machine.vram_bytes:
            self.dismiss(configuration)
            return
        question = f"{plain(verdict_line(plan))}. Load it anyway?"
        confirm(self, question, lambda: self.dismiss(configuration))

    def action_export(self) -> None:
        self._with_plan(self._export)

    def _export(self, plan: Plan) -> None:
        from app.screens.export import ExportScreen

        entry = self._chosen()
        self.app.push_screen(ExportScreen(plan, entry.name if entry else None))

    def _with_plan(self, use: Callable[[Plan], None]) -> None:
        entry = self._chosen()
        if entry is None:
            return
        if entry.problem is not None:
            self.notify(entry.problem, title="Not valid", severity="error")
            return
        if self._has_model(entry):
            self._plan_then(entry, use, None)
            return
        folders = model_folders()
        look = LibraryScan(folders, paths.header_cache_path())
        ask(self, FilesScreen("model", look, folders), partial(self._plan_then, entry, use))

    def _plan_then(
        self, entry: PresetEntry, use: Callable[[Plan], None], model: Path | None
    ) -> None:
        in_thread(self, "use", partial(self._plan_of, entry, model), use)

    # --- files ---

    def action_rename(self) -> None:
        entry = self._users_own("renamed")
        if entry is not None:
            ask_line(self, "Name of the preset", entry.name, partial(self._rename, entry))

    def _rename(self, entry: PresetEntry, name: str) -> None:
        if name != entry.name:
            self._change(lambda: rename_preset(entry.path, name, self._presets_dir))

    def action_delete(self) -> None:
        entry = self._users_own("deleted")
        if entry is not None:
            delete = partial(delete_preset, entry.path, self._presets_dir)
            question = f"Delete the preset “{visible(entry.name)}”?"
            confirm(self, question, lambda: self._change(delete))

    def _users_own(self, what: str) -> PresetEntry | None:
        entry = self._chosen()
        if entry is not None and entry.is_builtin:
            self.notify(
                f"{entry.name} is built in and cannot be {what}. To change the preset, load it "
                "and save it under another name in the planner (F2, s)."
            )
            return None
        return entry

    def _change(self, change: Callable[[], Path | None]) -> None:
        self._fill(change())


def _line(entry: PresetEntry) -> Line:
    kind = "✗ broken" if entry.problem else "" if entry.is_builtin else "yours"
    style = "bad" if entry.problem else "muted"
    return (Run(visible(entry.name), "strong"), Run(f"  {kind}" if kind else "", style))
