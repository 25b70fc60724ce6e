"""What the keys of the planner do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.worker import get_current_worker

from app import locations
from app.planning.asked import Asked, setup_of_preset
from app.planning.knob import Chooser
from app.planning.knobs_files import with_adapter, with_draft, with_projector
from app.planning.memo import RememberingPlanner
from app.planning.plan import Plan, Setup
from app.screens.ask import AskLine, AskYes
from app.widgets.plan_report import PlanReport
from engine.configuration import Configuration
from engine.errors import EngineError, PresetError
from engine.events import BufferSize
from engine.memory.fit import with_n_ctx
from engine.memory.units import GIB
from engine.model.library import ModelEntry, scan
from engine.presets.library import list_presets, preset_of, save_preset
from engine.presets.preset import Preset


class PlanActions(Screen[Configuration | None]):
    """Keys and their actions; the screen that is shown adds widgets and the plan."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="planner-back", tooltip="Back, nothing is loaded"),
        Binding("enter", "load", "Load", id="planner-load",
                tooltip="Load the model with these values"),
        Binding("l", "load", "Load", id="planner-load-too", show=False,
                tooltip="Load the model with these values"),
        Binding("f", "fit", "Fit", id="planner-fit",
                tooltip="Take the largest context that fits"),
        Binding("s", "save", "Save", id="planner-save", tooltip="Save as a preset"),
        Binding("x", "export", "Export", id="planner-export",
                tooltip="The arguments of llama-server"),
        Binding("c", "compare", "Compare", id="planner-compare",
                tooltip="Keep this plan as A and compare what the knobs say; again ends it"),
        Binding("w", "swap", "Swap", id="planner-swap", show=False,
                tooltip="While comparing: go back to plan A, and keep this one as A"),
        Binding("tab", "app.focus_next", "Table", id="planner-table",
                tooltip="Go to the table, and back to the knobs"),
        Binding("m", "choose_model", "Model", id="planner-model",
                tooltip="Plan another model"),
        Binding("pageup", "scroll_report(-1)", "Page up", id="planner-page-up", show=False,
                tooltip="Scroll the plan up"),
        Binding("pagedown", "scroll_report(1)", "Page down", id="planner-page-down", show=False,
                tooltip="Scroll the plan down"),
    ]  # fmt: skip

    def __init__(
        self,
        *,
        measured: tuple[BufferSize, ...],
        scan: Callable[[], Sequence[ModelEntry]] | None,
        presets_dir: Path | None,
    ) -> None:
        super().__init__()
        self.measured = measured
        self.planner = RememberingPlanner(loaded=measured)
        self.setup: Setup | None = None
        self.plan: Plan | None = None
        """What is shown; None where llama.cpp refuses the setup."""
        self.last_plan: Plan | None = None
        self.pinned: Plan | None = None
        """Plan A, which the one that is shown is compared with."""
        self._scan = scan or _scan
        self._presets_dir = presets_dir or locations.presets_dir()

    def change(self, setup: Setup) -> None:
        """Plan another setup."""
        raise NotImplementedError

    def show_again(self) -> None:
        """Paint the plan anew."""
        raise NotImplementedError

    # --- comparing ---

    def action_compare(self) -> None:
        """Keep the plan as A and compare with it; again ends that."""
        if self.pinned is not None:
            self.pinned = None
            self.show_again()
            return
        self.pinned = self._shown_plan()
        self.show_again()

    def action_swap(self) -> None:
        """Go back to plan A, and compare with what was B."""
        plan, pinned = self.plan, self.pinned
        if plan is None or pinned is None:
            self.notify("Nothing is compared: c keeps this plan as A.")
            return
        self.pinned = plan
        self.change(pinned.setup)

    # --- leaving ---

    def action_leave(self) -> None:
        """Go back without a change."""
        self.dismiss(None)

    def action_load(self) -> None:
        """Load what is planned, after a question where it does not fit."""
        plan = self._shown_plan()
        if plan is None:
            return
        configuration = plan.setup.configuration
        if plan.fits or plan.setup.vram_bytes:
            self.dismiss(configuration)
            return

        def load(is_sure: bool | None) -> None:
            if is_sure:
                self.dismiss(configuration)

        question = "By this plan it does not fit, and loading may fail. Load it all the same?"
        self.app.push_screen(AskYes(question), load)

    def action_fit(self) -> None:
        """Take the largest context that fits."""
        plan = self._shown_plan()
        if plan is None:
            return
        if plan.max_n_ctx is None:
            self.notify("No context fits: fewer layers on the GPU, or a smaller model.")
            return
        fitting = with_n_ctx(plan.setup.configuration, plan.max_n_ctx)
        self.change(replace(plan.setup, configuration=fitting))

    # --- presets and export ---

    def action_export(self) -> None:
        """Show the arguments of llama-server."""
        from app.screens.export import ExportScreen

        plan = self._shown_plan()
        if plan is not None:
            self.app.push_screen(ExportScreen(plan))

    def action_save(self) -> None:
        """Ask for a name and save a preset."""
        plan = self._shown_plan()
        if plan is None:
            return
        setup = plan.setup

        def save(name: str | None) -> None:
            if name:
                self._save(setup, name)

        self.app.push_screen(AskLine("Name of the preset", plan.model.file.path.stem), save)

    def _save(self, setup: Setup, name: str) -> None:
        try:
            preset = preset_of_setup(setup, name)
        except PresetError as error:
            self.report(error)
            return
        users = [entry for entry in list_presets(self._presets_dir) if not entry.is_builtin]
        if all(entry.name != name for entry in users):
            self._write(preset, replace_existing=False)
            return

        def write_over(is_sure: bool | None) -> None:
            if is_sure:
                self._write(preset, replace_existing=True)

        self.app.push_screen(AskYes(f"There is a preset “{name}”: replace it?"), write_over)

    def _write(self, preset: Preset, *, replace_existing: bool) -> None:
        try:
            path = save_preset(preset, self._presets_dir, replace_existing=replace_existing)
        except PresetError as error:
            self.report(error)
        else:
            self.notify(f"Saved {path}", markup=False)

    # --- models ---

    def action_choose_model(self) -> None:
        """List the models that were found."""
        now = None if self.setup is None else self.setup.configuration.model_path
        self._choose(now, self.open_model)

    def choose_file(self, chooser: Chooser) -> None:
        """List the files, one of which is to be drafted with, projected by, or added."""
        draft = None if self.setup is None else self.setup.configuration.draft
        now = None if draft is None or chooser != "draft" else draft.model_path

        def take(path: Path | None) -> None:
            if path is not None and self.setup is not None:
                self.open_setup(_WITH_FILE[chooser](self.setup, path))

        self._choose(now, take)

    def change_files(self, setup: Setup) -> None:
        """Plan another setup, some of whose files may not have been read yet."""
        if self.setup is not None and files_of(setup) == files_of(self.setup):
            self.change(setup)
        else:
            self.open_setup(setup)

    def _choose(self, now: Path | None, chosen: Callable[[Path | None], None]) -> None:
        from app.screens.models import ModelsScreen

        self.app.push_screen(ModelsScreen(self._scan, locations.model_folders(), now), chosen)

    def open_model(self, path: Path | None) -> None:
        """Plan a model as it suits the machine; None keeps the one that is there."""
        if path is not None:
            now = self.setup
            asked = Asked(
                model=str(path),
                target=now.target if now else "kvchat",
                vram_bytes=now.vram_bytes if now else (),
            )
            self._read(lambda: setup_of_preset(Preset(name="default"), asked, self.planner))

    def open_setup(self, setup: Setup) -> None:
        """Plan a setup whose models may not have been read yet."""
        self._read(lambda: setup)

    @work(thread=True, exclusive=True, group="read")
    def _read(self, make: Callable[[], Setup]) -> None:
        """Read headers and ask for devices away from the screen."""
        worker = get_current_worker()
        try:
            setup = make()
            self.planner.estimator(setup)
        except EngineError as error:
            if not worker.is_cancelled:
                self.app.call_from_thread(self.report, error)
            return
        if not worker.is_cancelled and self.is_attached:
            self.app.call_from_thread(self.change, setup)

    # --- the screen ---

    def action_scroll_report(self, pages: int) -> None:
        """Scroll the plan by pages."""
        report = self.query_one("#plan-report", PlanReport)
        report.scroll_relative(y=pages * max(report.size.height - 1, 1), animate=False)

    def report(self, error: EngineError) -> None:
        """Show an error as a notice."""
        self.notify(str(error), title=error.title, severity="error", markup=False)

    def _shown_plan(self) -> Plan | None:
        if self.plan is None:
            self.notify(
                "There is no plan yet: change what is said on the right, or choose a model."
            )
        return self.plan


_WITH_FILE: dict[str, Callable[[Setup, Path], Setup]] = {
    "draft": with_draft,
    "projector": with_projector,
    "adapter": with_adapter,
}


def files_of(setup: Setup) -> tuple[Path | None, ...]:
    """Give the files whose headers a plan needs."""
    now = setup.configuration
    draft = None if now.draft is None else now.draft.model_path
    return (now.model_path, draft, now.mmproj_path, *now.lora_paths)


def preset_of_setup(setup: Setup, name: str) -> Preset:
    """Give a preset of a setup, the size of a GPU that was typed included.

    Raises:
        PresetError: the name is impossible.
    """
    changed: dict[str, float] = {"margin_gib": setup.margin_bytes / GIB}
    if len(setup.vram_bytes) == 1:
        changed["vram_gib"] = setup.vram_bytes[0] / GIB
    return preset_of(setup.configuration, name).model_copy(update=changed)


def _scan() -> Sequence[ModelEntry]:
    return scan(locations.model_folders(), cache_path=locations.header_cache_path())
