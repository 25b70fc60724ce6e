"""The presets, each with its plan here: load, rename, delete, export."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType

from app import paths
from app.config import load_settings, model_folders
from app.planning import user_planner, with_settings
from app.render.lines import Line, Run, clipped, plain, width_of
from app.render.plan import verdict_line
from app.render.plan_lists import preset_lines
from app.sanitize import visible
from app.screens.dialogs import ask, ask_line, confirm, in_thread
from app.screens.list_detail import ListDetail
from app.screens.models import FilesScreen
from app.widgets.bars import TitleBar
from app.widgets.ink import LinesView
from app.widgets.select_list import MARKER_WIDTH, Row
from engine.configuration import Configuration
from engine.events import BufferSize
from engine.files import SETTINGS_BYTES, read_text, reason_of
from engine.model.library import LibraryScan
from engine.model.ollama import model_name, model_title
from engine.planning.planner import Plan
from engine.planning.request import PlanRequest, setup_of
from engine.presets.library import PresetEntry, delete_preset, list_presets, rename_preset

MAX_NAME = 30
"""Maximum cells of a name in the list."""
NO_MODEL = "The preset specifies no model, and no model is loaded: press enter to choose a model."
SERVED = "A server generates the replies, with its own settings: press enter to connect."
FRAME = MARKER_WIDTH + 4


class PresetsScreen(ListDetail[Configuration | None]):
    """The presets; the result is the configuration to load."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "load", "Load", id="presets-load", priority=True,
                tooltip="Load the model with this preset"),
        Binding("r", "rename", "Rename", id="presets-rename", tooltip="Rename the preset"),
        Binding("d", "delete", "Delete", id="presets-delete",
                tooltip="Delete the preset file"),
        Binding("delete", "delete", "Delete", id="presets-delete", show=False),
        Binding("x", "export", "Export", id="presets-export",
                tooltip="Show the preset as arguments of llama-server"),
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
            current: The loaded configuration; presets without a model use its model.
            measured: Its buffers, which another load frees.
        """
        super().__init__()
        self._presets_dir = presets_dir
        self._current = current
        is_local = current is not None and current.server is None
        self._model = current.model_path if current is not None and is_local else None
        self._planner = user_planner(loaded=measured)
        self.system_prompt = ""
        """System prompt of the chosen preset; a configuration has none."""
        self._entries: dict[Path, PresetEntry] = {}
        self._outcomes: dict[Path, Plan | str] = {}
        """The plan of each preset, or why it has none."""

    def on_mount(self) -> None:
        text = "no model is loaded: kvchat asks for one when you load a preset"
        if self._model is not None:
            text = f"for {visible(model_name(self._model))}"
        elif self._current is not None:
            served = visible(model_title(self._current.address))
            text = (
                f"{served} runs on a server: kvchat asks for a model on this machine when you "
                "load a preset"
            )
        title = (Run(" presets", "strong"), Run(f"  {text}", "muted"))
        self.query_one(TitleBar).present(partial(clipped, title))
        self.query_one(LinesView).set_frame(title="preview")
        self._fill(None)

    # --- list and preview ---

    def _fill(self, marked: Path | None) -> None:
        self._entries = {entry.path: entry for entry in list_presets(self._presets_dir)}
        lines = {path: _line(entry) for path, entry in self._entries.items()}
        widest = max(map(width_of, lines.values()), default=0)
        self.rows.styles.width = min(widest, MAX_NAME) + FRAME
        self.rows.show_rows([Row.of(path, *lines[path]) for path in lines], marked)
        self.show_marked()

    def show_marked(self) -> None:
        if (entry := self._marked) is None:
            return
        self._preview(entry)
        if entry.path not in self._outcomes and entry.problem is None:
            show = partial(self._show_outcome, entry)
            make = partial(self._outcome_of, entry)
            in_thread(self, "resolve", make, show, lambda error: show(str(error)))

    @property
    def _marked(self) -> PresetEntry | None:
        path = self.rows.marked_key
        return self._entries[path] if isinstance(path, Path) else None

    def _preview(self, entry: PresetEntry) -> None:
        try:
            text = read_text(entry.path, limit=SETTINGS_BYTES, errors="replace")
        except OSError as error:
            text = f"# the file cannot be read: {reason_of(error)}"
        outcome = self._outcomes.get(entry.path)
        is_hint = outcome in (NO_MODEL, SERVED)
        self.query_one(LinesView).present(
            lambda width: preset_lines(entry, text, outcome, width, is_hint=is_hint)
        )

    def _outcome_of(self, entry: PresetEntry) -> Plan | str:
        if entry.preset is not None and entry.preset.server is not None:
            return SERVED
        return self._plan_of(entry) if self._has_model(entry) else NO_MODEL

    def _show_outcome(self, entry: PresetEntry, outcome: Plan | str) -> None:
        self._outcomes[entry.path] = outcome
        if self._marked == entry:
            self._preview(entry)

    def _plan_of(self, entry: PresetEntry, model: Path | None = None) -> Plan:
        """The plan of a preset with the given model, its own model, or the loaded one."""
        own = None if entry.preset is None else entry.preset.model
        model = model or (self._model if own is None else None)
        request = PlanRequest(model=None if model is None else str(model))
        rules = with_settings(entry.preset, load_settings().settings)
        return self._planner.plan(setup_of(request, self._planner, rules))

    def _has_model(self, entry: PresetEntry) -> bool:
        preset = entry.preset
        if preset is None or preset.server is not None:
            return False
        return self._model is not None or preset.model is not None

    # --- load and export ---

    def on_select_list_picked(self) -> None:
        self.action_load()

    def action_load(self) -> None:
        entry = self._marked
        preset = None if entry is None else entry.preset
        if preset is None or preset.server is None:
            self._with_plan(self._load)
            return
        self.system_prompt = preset.system_prompt
        sampling = preset.sampling.settings()
        self.dismiss(
            Configuration.at_server(preset.server, preset.model, sampling, is_trusted=True)
        )

    def _load(self, entry: PresetEntry, plan: Plan) -> None:
        self.system_prompt = entry.preset.system_prompt if entry.preset else ""
        load = partial(self.dismiss, plan.setup.configuration)
        if plan.fits or plan.setup.machine.vram_bytes:
            load()
        else:
            confirm(self, f"{plain(verdict_line(plan))}. Load it anyway?", load)

    def action_export(self) -> None:
        self._with_plan(self._export)

    def _export(self, entry: PresetEntry, plan: Plan) -> None:
        from app.screens.export import ExportScreen

        self.app.push_screen(ExportScreen(plan, entry.name))

    def _with_plan(self, use: Callable[[PresetEntry, Plan], object]) -> None:
        """Plan the highlighted preset, with a model that the user chooses if there is none."""
        entry = self._marked
        if entry is None:
            return
        if entry.problem is not None:
            self.notify(entry.problem, title="Not valid", severity="error")
            return

        def plan(model: Path | None) -> None:
            in_thread(self, "use", partial(self._plan_of, entry, model), partial(use, entry))

        if self._has_model(entry):
            plan(None)
        else:
            folders = model_folders()
            scan = LibraryScan(folders, paths.header_cache_path())
            ask(self, FilesScreen("model", scan, folders), plan)

    # --- files ---

    def action_rename(self) -> None:
        entry = self._users_own("renamed")
        if entry is not None:
            ask_line(self, "Name of the preset", entry.name, partial(self._rename, entry))

    def _rename(self, entry: PresetEntry, name: str) -> None:
        if name != entry.name:
            self._fill(rename_preset(entry.path, name, self._presets_dir))

    def action_delete(self) -> None:
        entry = self._users_own("deleted")
        if entry is not None:

            def delete() -> None:
                delete_preset(entry.path, self._presets_dir)
                self._fill(None)

            confirm(self, f"Delete the preset “{visible(entry.name)}”?", delete)

    def _users_own(self, what: str) -> PresetEntry | None:
        """The highlighted preset; for a built-in one, a notice and None."""
        entry = self._marked
        if entry is not None and entry.is_builtin:
            self.notify(
                f"{entry.name} is built in and cannot be {what}. To change the preset, load it "
                "and save it under another name in the planner (F2, s)."
            )
            return None
        return entry


def _line(entry: PresetEntry) -> Line:
    kind = "  ✗ broken" if entry.problem else "" if entry.is_builtin else "  yours"
    return (Run(visible(entry.name), "strong"), Run(kind, "bad" if entry.problem else "muted"))
