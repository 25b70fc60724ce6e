"""The planner: settings on the left, on the right what they cost."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Input

from app import paths
from app.config import model_folders
from app.render.lines import EMPTY, Line, Run
from app.render.plan import refusal_lines
from app.render.plan_changes import option_help, option_line
from app.screens.dialogs import ask, ask_line, confirm, in_thread
from app.screens.list_detail import ListDetail
from app.screens.plan_session import PlanSession, file_of
from app.screens.planner_lists import (
    CardsScreen,
    change_list,
    file_list,
    goal_list,
    save_as_preset,
    scan_models,
    with_file,
)
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.planner import OptionList, PlanTable
from app.widgets.select_list import Row
from engine.configuration import Configuration
from engine.errors import EngineError, PresetError
from engine.events import BufferSize
from engine.memory.dry_run import DryRun
from engine.memory.estimate import with_n_ctx
from engine.model.library import ModelEntry
from engine.model.ollama import model_name
from engine.planning.changes import Change, OptionSteps, steps_of
from engine.planning.fit import SearchResult, search_setup
from engine.planning.machine import PlannedMachine, parse_gpus
from engine.planning.measured import can_measure, measured_plan
from engine.planning.models import fit_context
from engine.planning.options import OPTIONS, Chooser, PlanOption, with_machine
from engine.planning.planner import Plan, Setup
from engine.planning.search import Goal
from engine.planning.table import cost_table

SETTLED_AFTER_S = 0.2
"""Time without a change after which suggestions and the dry run are computed."""
NO_MODEL = "No model is chosen: press m to choose one."
NO_PLAN = "There is no plan yet: fix the problem on the right, or choose a model."


class PlannerScreen(ListDetail[Configuration | None]):
    """Plans a model; the result is the configuration to load."""

    CSS_PATH: ClassVar[list[str | PurePath]] = [
        "../styles/list_detail.tcss", "../styles/planner.tcss"
    ]  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "load", "Load", id="planner-load", priority=True,
                tooltip="Load the model with these values"),
        Binding("l", "load", "Load", id="planner-load", show=False),
        Binding("tab", "app.focus_next", "Table", id="planner-table",
                tooltip="Switch between the settings and the table of K/V types"),
        Binding("g", "search", "Goal", id="planner-goal",
                tooltip="Search for the largest context, most precise cache, highest speed, or "
                        "best balance"),
        Binding("m", "choose_model", "Model", id="planner-model",
                tooltip="Plan another model: one on this machine, or one from the catalogue"),
        Binding("d", "choose_card", "GPUs", id="planner-cards",
                tooltip="Choose other GPUs to plan for"),
        Binding("x", "export", "Export", id="planner-export",
                tooltip="Show, copy or save the plan in the formats of other programs"),
        Binding("s", "save", "Save", id="planner-save", tooltip="Save the plan as a preset"),
        Binding("f", "fit", "Largest context", id="planner-fit",
                tooltip="Set the largest context that fits"),
        Binding("a", "apply", "Apply", id="planner-apply",
                tooltip="Apply one of the suggested changes, for example one that makes the plan "
                        "fit"),
        Binding("u", "undo", "Undo", id="planner-undo", tooltip="Undo the last change"),
        Binding("r", "reset", "Reset", id="planner-begin",
                tooltip="Reset the plan to the loaded model and its settings"),
    ]  # fmt: skip

    def __init__(
        self,
        model_path: Path | None,
        configuration: Configuration | None,
        *,
        measured: tuple[BufferSize, ...] = (),
        scan: Callable[[], Sequence[ModelEntry]] | None = None,
        presets_dir: Path | None = None,
        dry_run: DryRun | None = None,
        left: PlanSession | None = None,
    ) -> None:
        """Plan a model.

        Args:
            model_path: The model; None lets the user choose one.
            configuration: The loaded configuration, if there is one.
            measured: The buffers that llama.cpp allocated for it.
            scan: Finds the models to choose from.
            presets_dir: Where presets are saved.
            dry_run: Measures in the background.
            left: An earlier session, continued if the same model is loaded.
        """
        super().__init__()
        self.session = PlanSession(configuration, measured)
        self._model_path = model_path
        self._scan = scan or scan_models
        self._presets_dir = presets_dir or paths.presets_dir()
        is_same = left is not None and file_of(left.loaded) == file_of(configuration)
        self._left = left if is_same else None
        self._dry_run = dry_run or DryRun()
        self._timer: Timer | None = None
        self._steps = OptionSteps()
        self._problem = ""

    def compose(self) -> ComposeResult:
        yield TitleBar(id="list-title")
        with Horizontal(id="list-main"):
            with Vertical(id="plan-left"):
                yield OptionList(title="settings", id="plan-options")
                yield Input(id="plan-value", compact=True, select_on_focus=False)
                yield LinesView(below=None, id="plan-help")
            with Vertical(id="plan-middle"):
                yield LinesView(title="memory", id="plan-report")
                yield PlanTable(id="plan-table")
            yield LinesView(title="notes", id="plan-side")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        if self._left is None or (setup := self._left.setup) is None:
            self._begin()
        else:
            self.session.resume(self._left)
            self._read(lambda: setup)

    def on_unmount(self) -> None:
        self._dry_run.close()

    def _begin(self) -> None:
        """Plan the loaded model, or let the user choose one."""
        path, loaded = self._model_path, self.session.loaded
        if loaded is not None and path in (None, loaded.model_path):
            setup = self.session.start(loaded)
            self._read(lambda: setup)
        elif path is not None:
            self.open_model(path)
        else:
            self._report.present(lambda _: [(Run(NO_MODEL, "muted"),)])
            self.action_choose_model()

    # --- the plan ---

    @property
    def setup(self) -> Setup | None:
        """Model, configuration and machine of the plan; None before a model is chosen."""
        return self.session.setup

    @property
    def plan(self) -> Plan | None:
        """The plan; None if llama.cpp refuses the setup."""
        return self.session.plan

    def left(self) -> PlanSession | None:
        """The session, to continue it later; None without a plan."""
        return self.session if self.setup is not None else None

    def open_model(self, name: str | Path) -> None:
        """Plan a model, by path or name, with values that suit the machine."""
        self._read(partial(self.session.setup_for, str(name)))

    def _read(self, make: Callable[[], Setup]) -> None:
        """Make a setup and read its headers in a thread; then plan it."""

        def read() -> Setup:
            setup = make()
            self.session.planner.estimator(setup)
            return setup

        in_thread(self, "read", read, self.change)

    def apply(self, setup: Setup) -> None:
        """Plan a setup that the user changed; values that the user never set follow the machine."""
        if self.setup is None:
            return
        setup = self.session.following(setup)
        if self.session.has_headers_of(setup):
            self.change(setup)
        else:
            self._read(lambda: setup)

    def change(self, setup: Setup) -> None:
        """Plan a setup whose headers were read."""
        self._problem, self._steps = "", OptionSteps()
        try:
            self.session.change(setup)
        except EngineError as error:
            self._show_refusal(error)
        else:
            self.show_plan()
        self._show_options()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(SETTLED_AFTER_S, self._compute)

    # --- computed in threads once the plan has settled ---

    def _compute(self) -> None:
        plan = self.plan
        if plan is None:
            return
        self._compute_steps()
        find = partial(self.session.find_changes, plan.setup)
        in_thread(self, "changes", find, partial(self._show_changes, plan.setup))
        if can_measure(plan):
            measure = partial(measured_plan, plan, self._dry_run)
            show = partial(self._show_measured, plan)
            in_thread(self, "measure", measure, show, lambda error: show(plan, str(error)))

    def _compute_steps(self) -> None:
        """Compute what a step of the highlighted option changes."""
        setup, facts, option = self.setup, self.session.facts, self._option
        if self.plan is None or setup is None or facts is None:
            return

        def compute() -> OptionSteps:
            return steps_of(option, self.session.planner.plan(setup), self.session.planner, facts)

        in_thread(self, "steps", compute, partial(self._show_steps, setup, option))

    def _show_steps(self, setup: Setup, option: PlanOption, steps: OptionSteps) -> None:
        if self.setup is setup and self._option is option:
            self._steps = steps
            self._show_help()

    def _show_changes(self, setup: Setup, found: tuple[Change, ...]) -> None:
        if self.setup is setup:
            self.session.changes = found
            self.show_plan()

    def _show_measured(self, plan: Plan, measured: Plan, note: str = "") -> None:
        if self.plan is plan:
            self.session.note, self.session.plan = note, measured
            self.show_plan()

    # --- options and table ---

    @property
    def _option(self) -> PlanOption:
        return next(each for each in OPTIONS if each.name == (self.rows.marked_key or "n_ctx"))

    def _show_options(self) -> None:
        setup, facts = self.setup, self.session.facts
        if setup is not None and facts is not None:
            rows = [Row(each.name, partial(option_line, each, setup, facts)) for each in OPTIONS]
            self.rows.show_rows(rows, None if self.rows.rows else self.session.option)
            self._show_help()

    def _show_help(self) -> None:
        setup, facts = self.setup, self.session.facts
        if setup is not None and facts is not None:
            lines = partial(option_help, self._option, setup, facts, self._steps, self._problem)
            self.query_one("#plan-help", LinesView).present(lines)

    def show_marked(self) -> None:
        self.session.option, self._steps, self._problem = self._option.name, OptionSteps(), ""
        self._show_help()
        self._compute_steps()

    def on_option_list_stepped(self, message: OptionList.Stepped) -> None:
        setup, facts, option = self.setup, self.session.facts, self._option
        if setup is None or facts is None or self._is_disabled():
            return
        if option.chooser is not None and option.chooser != "device" and message.step > 0:
            self._choose_file(option.chooser, setup)
            return
        changed = option.step(setup, facts, message.step)
        if changed != setup:
            self.apply(changed)

    def on_select_list_picked(self) -> None:
        self._begin_typing("")

    def on_option_list_typed(self, message: OptionList.Typed) -> None:
        self._begin_typing(message.text)

    def _is_disabled(self) -> bool:
        """Whether the highlighted option has no effect; the reason is shown."""
        setup, facts = self.setup, self.session.facts
        reason = self._option.disabled_reason(setup, facts) if setup and facts else ""
        self._problem = reason
        self._show_help()
        return bool(reason)

    def _begin_typing(self, text: str) -> None:
        if self.setup is not None and not self._is_disabled():
            box = self._value_box
            box.display, box.value, box.cursor_position = True, text, len(text)
            self.set_focus(box)

    @property
    def _value_box(self) -> Input:
        return self.query_one("#plan-value", Input)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        setup = self.setup
        if setup is not None and message.value.strip():
            try:
                setup = self._option.parse(setup, message.value)
            except EngineError as error:
                self._problem = str(error)
                self._show_help()
                return
            self.apply(setup)
        self.set_focus(self.rows)

    def on_input_blurred(self) -> None:
        self._value_box.display, self._problem = False, ""
        self._show_help()

    def on_plan_table_chosen(self, message: PlanTable.Chosen) -> None:
        self.apply(message.setup)

    # --- showing ---

    @property
    def _report(self) -> LinesView:
        return self.query_one("#plan-report", LinesView)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_plan)

    def show_plan(self) -> None:
        """Paint the plan."""
        plan, session, report = self.plan, self.session, self._report
        if plan is None:
            return
        self.query_one(TitleBar).present(partial(session.heading, plan))
        is_split = self.has_class("-huge")

        def memory(width: int) -> list[Line]:
            lines = session.memory_lines(plan, width, report.symbols)
            return lines if is_split else [*lines, EMPTY, *session.side_lines(plan, width)]

        report.present(memory)
        if is_split:
            self.query_one("#plan-side", LinesView).present(partial(session.side_lines, plan))
        self.call_after_refresh(self._show_table, plan)

    def _show_table(self, plan: Plan) -> None:
        if self.plan is plan:
            table, cost = self.query_one(PlanTable), self.session.planner.estimator(plan.setup)
            found = cost_table(plan, cost, table.n_columns, shown=table.contexts)
            table.present(found, plan.setup)

    def _show_refusal(self, error: EngineError) -> None:
        title = error.title
        if isinstance(error, PresetError):
            title = "llama.cpp does not support this configuration"
        undo = "\n\nPress u to undo the last change." if self.session.past else ""
        self._report.present(partial(refusal_lines, title, f"{error}{undo}"))
        self.query_one("#plan-side", LinesView).present(lambda _: [])
        self.query_one(PlanTable).present(None, None)

    # --- changes by keys ---

    def action_reset(self) -> None:
        self.session.searched = None
        self._begin()

    def action_undo(self) -> None:
        past = self.session.past
        if not past:
            self.notify("There is no change to undo.")
            return
        self.change(past.pop())
        past.pop()

    def action_apply(self) -> None:
        if self.session.changes:
            ask(self, change_list(self.session.changes), self.apply)
        elif self.session.changes is None:
            self.notify("The suggested changes are still being computed: wait a moment.")
        else:
            self.notify("There are no suggested changes.")

    def action_fit(self) -> None:
        plan = self._made_plan()
        if plan is None:
            return
        if plan.max_n_ctx is None:
            self.notify("No context fits: put fewer layers on the GPU, or choose a smaller model.")
            return
        fitting = with_n_ctx(plan.setup.configuration, plan.max_n_ctx)
        self.apply(plan.setup.with_configuration(fitting))

    # --- changes by lists ---

    def action_choose_model(self) -> None:
        from app.screens.models import ModelsScreen

        now = None if self.setup is None else self.setup.configuration.model_path
        context = partial(fit_context, self.setup, self.session.planner)
        loaded = self.session.loaded
        screen = ModelsScreen(self._scan, model_folders(), context, now, loaded=loaded)
        ask(self, screen, self.open_model)

    def _choose_file(self, chooser: Chooser, setup: Setup) -> None:
        files = file_list(chooser, setup.configuration, self._scan, self.session.planner)
        ask(self, files, lambda path: self.apply(with_file(chooser, setup, path)))

    def action_choose_card(self) -> None:
        setup = self.setup
        if setup is None:
            self.notify(NO_MODEL)
            return

        def use(typed: str) -> None:
            self.apply(with_machine(setup, parse_gpus(setup.machine, typed)))

        ask(self, CardsScreen(self.session.planner.devices(PlannedMachine())), use)

    def action_search(self) -> None:
        searched = self.setup
        if searched is None:
            self.notify(NO_MODEL)
            return

        def search(goal: Goal) -> None:
            work = partial(search_setup, searched, goal, self.session.planner)
            in_thread(self, "search", work, show)

        def show(found: SearchResult) -> None:
            if self.setup is searched:
                setup = searched.with_configuration(found.configuration)
                self.session.searched = setup, found
                self.change(setup)

        ask(self, goal_list(), search)

    # --- leave, load, save, export ---

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  Textual's signature
    ) -> bool:
        """Leave enter to the value that is typed."""
        return action != "load" or not self._value_box.has_focus

    def action_leave(self) -> None:
        if self._value_box.has_focus:
            self.set_focus(self.rows)
        else:
            self.dismiss(None)

    def action_load(self) -> None:
        plan = self._made_plan()
        if plan is None:
            return
        configuration = plan.setup.configuration
        if plan.model.file.origin is not None:
            self.notify("This model is not on this machine: download the model before you load it.")
        elif plan.fits or not plan.setup.machine.is_here:
            self.dismiss(configuration)
        else:
            question = "The plan does not fit, so loading may fail. Load the model anyway?"
            confirm(self, question, lambda: self.dismiss(configuration))

    def action_export(self) -> None:
        from app.screens.export import ExportScreen

        if (plan := self._made_plan()) is not None:
            self.app.push_screen(ExportScreen(plan))

    def action_save(self) -> None:
        if (plan := self._made_plan()) is not None:
            name = model_name(plan.model.file.path)
            save = partial(save_as_preset, self, plan.setup, self._presets_dir)
            ask_line(self, "Name of the preset", name, save)

    def _made_plan(self) -> Plan | None:
        """The plan; a notice explains what to do if there is none."""
        if self.plan is None:
            self.notify(NO_PLAN)
        return self.plan
