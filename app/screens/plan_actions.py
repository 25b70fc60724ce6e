"""What the keys of the planner do."""

from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType

from app.screens.ask import AskLine, AskYes
from app.screens.plan_choices import LeftPlan, PlanChoices
from app.widgets.panes import PlanReport
from app.widgets.plan_knobs import PlanKnobs
from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.cards import find_card
from engine.memory.fit import with_n_ctx
from engine.memory.units import GIB
from engine.planning.planner import Plan, Setup
from engine.planning.what_if import Effect
from engine.presets.library import list_presets, preset_of, save_preset
from engine.presets.preset import Preset


class PlanActions(PlanChoices):
    """Keys and their actions; the screen that is shown adds widgets and the plan."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "load", "Load", id="planner-load",
                tooltip="Load the model with these values"),
        Binding("l", "load", "Load", id="planner-load-too", show=False,
                tooltip="Load the model with these values"),
        Binding("tab", "app.focus_next", "Table", id="planner-table",
                tooltip="Go to the table, and back to the knobs"),
        Binding("g", "search", "Goal", id="planner-goal",
                tooltip="Search: largest context, finest cache, fastest, balanced"),
        Binding("c", "compare", "Compare", id="planner-compare",
                tooltip="Keep this plan as A and compare what the knobs say; again ends it"),
        Binding("w", "swap", "Swap", id="planner-swap", show=False,
                tooltip="While comparing: go back to plan A, and keep this one as A"),
        Binding("m", "choose_model", "Model", id="planner-model",
                tooltip="Plan another model, of this machine or of the catalogue"),
        Binding("d", "choose_card", "GPUs", id="planner-cards",
                tooltip="Plan for other GPUs: a list of cards"),
        Binding("x", "export", "Export", id="planner-export",
                tooltip="Look at the plan in the formats of other programs, copy and save it"),
        Binding("s", "save", "Save", id="planner-save", tooltip="Save as a preset"),
        Binding("escape", "leave", "Back", id="planner-back", tooltip="Back, nothing is loaded"),
        Binding("f", "fit", "Fit", id="planner-fit",
                tooltip="Take the largest context that fits"),
        Binding("a", "apply", "Apply", id="planner-apply",
                tooltip="Take one of the changes under what if; the first makes it fit"),
        Binding("u", "undo", "Undo", id="planner-undo", tooltip="Take the last change back"),
        Binding("r", "begin_again", "Anew", id="planner-begin",
                tooltip="Begin again from the model that is loaded"),
        Binding("pageup", "scroll_report(-1)", "Page up", id="planner-page-up", show=False,
                tooltip="Scroll the plan up"),
        Binding("pagedown", "scroll_report(1)", "Page down", id="planner-page-down", show=False,
                tooltip="Scroll the plan down"),
    ]  # fmt: skip

    pinned: Plan | None = None
    """Plan A, which the one that is shown is compared with."""
    loaded: Configuration | None = None
    """What is loaded, where the knobs start."""
    effects: tuple[Effect, ...] = ()
    """The changes worth a thought, the best first; none until they were worked out."""

    def show_again(self) -> None:
        """Paint the plan anew."""
        raise NotImplementedError

    def begin(self) -> None:
        """Plan what is loaded, or let a model be chosen."""
        raise NotImplementedError

    # --- going back ---

    def left(self) -> LeftPlan | None:
        """Give what is planned, to come back to; None where nothing is."""
        if self.setup is None:
            return None
        knob = self.query_one(PlanKnobs).place
        return LeftPlan(
            self.loaded, self.setup, self.kept, knob, self.searched, self.pinned, self.planner
        )

    def come_back(self, left: LeftPlan) -> None:
        """Plan again what was left."""
        self.planner.take_headers(left.planner)
        self.query_one(PlanKnobs).action_choose_end(left.knob)
        self.searched, self.pinned = left.searched, left.pinned
        self.open_setup(left.setup, left.kept)

    def action_begin_again(self) -> None:
        """Forget what was planned, and begin with what is loaded."""
        self.searched = self.pinned = None
        self.begin()

    def action_undo(self) -> None:
        """Take the last change back."""
        if not self.past:
            self.notify("Nothing was changed yet.")
            return
        setup = self.past.pop()
        self.change(setup)
        self.past.pop()

    def action_apply(self) -> None:
        """List the changes worth a thought; the one that is chosen becomes the plan."""
        from app.screens.plan_effects import EffectsScreen

        def take(setup: Setup | None) -> None:
            if setup is not None:
                self.turn(setup)

        if self.effects:
            self.app.push_screen(EffectsScreen(self.effects), take)
        else:
            self.notify("There is no change to offer yet: they come when the knobs rest.")

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
        if plan.model.file.origin is not None:
            self.notify("This model is not on this machine: it can be planned, not loaded.")
            return
        if plan.fits or not plan.setup.machine.is_here:
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
        self.turn(replace(plan.setup, configuration=fitting))

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

    # --- the screen ---

    def action_scroll_report(self, pages: int) -> None:
        """Scroll the plan, and what to know beside it, by pages."""
        for report in self.query(PlanReport):
            report.scroll_relative(y=pages * max(report.size.height - 1, 1), animate=False)

    def _shown_plan(self) -> Plan | None:
        if self.plan is None:
            self.notify(
                "There is no plan yet: change what is said on the right, or choose a model."
            )
        return self.plan


def preset_of_setup(setup: Setup, name: str) -> Preset:
    """Give a preset of a setup, the size of the one GPU that was chosen included.

    Raises:
        PresetError: the name is impossible.
    """
    changed: dict[str, float] = {"margin_gib": setup.margin_bytes / GIB}
    sizes = (
        *setup.machine.vram_bytes,
        *(find_card(name).memory_bytes for name in setup.machine.cards),
    )
    if len(sizes) == 1:
        changed["vram_gib"] = sizes[0] / GIB
    return preset_of(setup.configuration, name).model_copy(update=changed)
