"""The planner: options on the left, on the right what they cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.timer import Timer

from app import paths
from app.config import model_folders
from app.render.lines import EMPTY, Line, Run
from app.render.plan import refusal_lines
from app.screens.dialogs import ask, ask_line, confirm, in_thread
from app.screens.plan_session import PlanSession, file_of
from app.screens.planner_lists import (
    FILES,
    CardsScreen,
    change_list,
    file_list,
    goal_list,
    save_as_preset,
    scan_models,
)
from app.threads import is_open
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.planner import PlanOptions, PlanTable
from engine.configuration import Configuration
from engine.errors import EngineError, PresetError
from engine.events import BufferSize
from engine.memory.dry_run import DryRun
from engine.memory.estimate import with_n_ctx
from engine.model.library import ModelEntry
from engine.model.ollama import model_name
from engine.planning.changes import steps_of
from engine.planning.fit import SearchResult, search_setup
from engine.planning.machine import PlannedMachine, with_gpus
from engine.planning.measured import can_measure, measured_plan
from engine.planning.models import fit_context
from engine.planning.options import Chooser, with_machine
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.search import Goal
from engine.planning.table import cost_table

MEASURE_AFTER_S = 0.4
"""The dry run waits until the options rest."""
IDLE_AFTER_S = 0.05
"""What-ifs wait until the plan itself is painted, and a key that is held goes before them."""
NO_MODEL = "No model is chosen: press m to choose one."
WIDTHS = [(0, "-narrow"), (100, "-wide"), (160, "-huge")]


class PlannerScreen(Screen[Configuration | None]):
    """Plans a model; the result is the configuration to load, None to stay with what is there."""

    CSS_PATH = "../styles/planner.tcss"
    HORIZONTAL_BREAKPOINTS = WIDTHS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "load", "Load", id="planner-load",
                tooltip="Load the model with these values"),
        Binding("l", "load", "Load", id="planner-load-too", show=False,
                tooltip="Load the model with these values"),
        Binding("tab", "app.focus_next", "Table", id="planner-table",
                tooltip="Switch between the settings and the table"),
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
        Binding("escape", "leave", "Back", id="planner-back",
                tooltip="Go back without loading the model"),
        Binding("f", "fit", "Largest context", id="planner-fit",
                tooltip="Set the largest context that fits"),
        Binding("a", "apply", "Apply", id="planner-apply",
                tooltip="Apply one of the suggested changes, for example one that makes the plan "
                        "fit"),
        Binding("u", "undo", "Undo", id="planner-undo", tooltip="Undo the last change"),
        Binding("r", "begin_again", "Reset", id="planner-begin",
                tooltip="Reset the plan to the loaded model and its settings"),
        Binding("pageup", "scroll_report(-1)", "Page up", id="planner-page-up", show=False,
                tooltip="Scroll the plan up"),
        Binding("pagedown", "scroll_report(1)", "Page down", id="planner-page-down", show=False,
                tooltip="Scroll the plan down"),
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
            configuration: Where the options start; None starts with what suits the machine.
            measured: What llama.cpp has allocated for that configuration, shown beside the plan.
            scan: Finds the models to choose from; None looks into the usual folders.
            presets_dir: Where presets are saved; None is the usual folder.
            dry_run: Measures in the background; None starts llama.cpp's own.
            left: What was planned when the planner was left before; it is shown again.
        """
        super().__init__()
        self.session = PlanSession(configuration, measured)
        self._model_path = model_path
        self._scan = scan or scan_models
        self._presets_dir = presets_dir or paths.presets_dir()
        is_same = left is not None and file_of(left.loaded) == file_of(configuration)
        self._left = left if is_same else None
        self._dry_run = dry_run or DryRun()
        self._measure_timer: Timer | None = None
        self._idle_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield TitleBar(id="plan-title")
        with Horizontal(id="planner"):
            yield PlanOptions(id="plan-options")
            with Vertical(id="plan-middle"):
                yield LinesView(title="memory", id="plan-report")
                yield PlanTable(id="plan-table")
            yield LinesView(title="notes", id="plan-side")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._options.focus()
        left = self._left
        if left is None or left.setup is None:
            self._begin()
        else:
            self.session.resume(left)
            self._options.action_choose_end(left.option)
            self._open_setup(left.setup, left.kept)

    def _begin(self) -> None:
        """Plan what is loaded, or let a model be chosen."""
        path, loaded = self._model_path, self.session.loaded
        if loaded is not None and path in (None, loaded.model_path):
            self._open_setup(*self.session.start_of_loaded(loaded))
        elif path is not None:
            self.open_model(path)
        else:
            text = (Run(NO_MODEL, "muted"),)
            self._report.present(lambda _: [text])
            self.action_choose_model()

    def on_unmount(self) -> None:
        self._dry_run.close()

    # --- what is planned ---

    @property
    def setup(self) -> Setup | None:
        """What is planned; None before a model is chosen."""
        return self.session.setup

    @property
    def plan(self) -> Plan | None:
        """What is shown; None where llama.cpp refuses the setup."""
        return self.session.plan

    @property
    def planner(self) -> Planner:
        """Knows the headers that were read, and the estimates made so far."""
        return self.session.planner

    @property
    def has_changes(self) -> bool:
        """Whether the changes worth a thought are known for the plan that is shown."""
        return self.session.has_changes

    def left(self) -> PlanSession | None:
        """What is planned, to come back to; None where nothing is."""
        for options in self.query(PlanOptions):  # none where it was left before it was composed
            self.session.option = options.index
        return self.session if self.setup is not None else None

    def open_model(self, name: str | Path) -> None:
        """Plan a model, by its path or any other name, as it suits the machine."""
        self._read(partial(self.session.start_of_model, str(name)), frozenset())

    def _open_setup(self, setup: Setup, kept: frozenset[str] | None = None) -> None:
        """Plan a setup whose models may not have been read yet; with None, what is kept stays."""
        self._read(lambda: setup, kept)

    def _read(self, make: Callable[[], Setup], kept: frozenset[str] | None) -> None:
        """Read headers and ask for devices away from the screen."""

        def read() -> Setup:
            setup = make()
            self.planner.estimator(setup)
            return setup

        in_thread(self, "read", read, partial(self._take_read, kept))

    def _take_read(self, kept: frozenset[str] | None, setup: Setup) -> None:
        if kept is not None:
            self.session.kept = kept
        self.change(setup)

    def turn(self, setup: Setup) -> None:
        """Plan what the user made of the setup; what follows the machine goes along with it."""
        if self.setup is None:
            return
        turned = self.session.turned(setup)
        if self.session.has_headers_of(turned):
            self.change(turned)
        else:
            self._open_setup(turned)

    def change(self, setup: Setup) -> None:
        """Plan another setup and show it; the headers of its files are known."""
        facts = self.session.enter(setup)
        if self.setup is not None:
            self._options.present(self.setup, facts)
        try:
            plan = self.session.make_plan()
        except EngineError as error:
            self._present_refusal(error)
            return
        self.show_again()
        if plan is not None:
            self._when_idle(plan, self._find_changes)
            self._measure_later(plan)

    # --- options and table ---

    def on_plan_options_turned(self, message: PlanOptions.Turned) -> None:
        setup = self.setup
        if setup is None or self.session.last_plan is None:
            return
        chooser = message.option.chooser
        if chooser is not None and chooser != "device" and message.step > 0:
            self._choose_file(chooser, setup)
            return
        turned = message.option.step(setup, self.planner.facts_of(setup), message.step)
        if turned != setup:
            self.turn(turned)

    def on_plan_options_typed(self, message: PlanOptions.Typed) -> None:
        read = message.option.parse
        if self.setup is None or read is None:
            return
        try:
            setup = read(self.setup, message.text)
        except EngineError as error:
            self._options.present(self.setup, self.planner.facts_of(self.setup), str(error))
            return
        self.turn(setup)

    def on_plan_options_focused(self) -> None:
        if self.plan is not None:
            # The changes worth a thought may not have been reached yet.
            self._when_idle(self.plan, self._steps if self.has_changes else self._find_changes)

    def on_plan_table_chosen(self, message: PlanTable.Chosen) -> None:
        self.turn(message.setup)

    # --- what waits until the plan is painted ---

    def _when_idle(self, plan: Plan, work: Callable[[], Iterator[None]]) -> None:
        """Work a little at a time, and stop where the plan is another one."""
        if self._idle_timer is not None:
            self._idle_timer.stop()
        steps = work()

        def step() -> None:
            if not is_open(self) or self.setup is not plan.setup or next(steps, self) is self:
                return
            self._idle_timer = self.set_timer(0.001, step)

        self._idle_timer = self.set_timer(IDLE_AFTER_S, step)

    def _steps(self) -> Iterator[None]:
        if self.setup is not None:
            # The numbers of the formula on both sides: a dry run measured the plan alone.
            plan = self.planner.plan(self.setup)
            facts = self.planner.facts_of(self.setup)
            self._options.present_steps(steps_of(self._options.option, plan, self.planner, facts))
        yield

    def _find_changes(self) -> Iterator[None]:
        yield from self._steps()
        yield from self.session.find_changes()
        self.show_again()

    def _measure_later(self, plan: Plan) -> None:
        if self._measure_timer is not None:
            self._measure_timer.stop()
        if can_measure(plan):
            self._measure_timer = self.set_timer(MEASURE_AFTER_S, lambda: self._measure(plan))

    def _measure(self, plan: Plan) -> None:
        def fail(error: EngineError) -> None:
            self._take_measured(plan, plan, str(error))

        take = partial(self._take_measured, plan)
        in_thread(self, "measure", lambda: measured_plan(plan, self._dry_run), take, fail)

    def _take_measured(self, plan: Plan, measured: Plan, note: str = "") -> None:
        # The options may have been turned while llama.cpp was asked.
        if self.plan is plan:
            self.session.note = note
            self.session.plan = self.session.last_plan = measured
            self.show_again()

    # --- showing ---

    @property
    def _options(self) -> PlanOptions:
        return self.query_one(PlanOptions)

    @property
    def _report(self) -> LinesView:
        return self.query_one("#plan-report", LinesView)

    def on_resize(self) -> None:
        if self.setup is not None:
            self.call_after_refresh(self.show_again)

    def show_again(self) -> None:
        """Paint the plan anew."""
        plan = self.plan
        if plan is None:
            return
        session, middle = self.session, self._report
        self.query_one(TitleBar).present(partial(session.heading, plan))
        is_split = self.has_class("-huge")
        middle.set_frame(title="memory")

        def memory(width: int) -> list[Line]:
            lines = session.memory_lines(plan, width, middle.symbols)
            return lines if is_split else [*lines, EMPTY, *session.side_lines(plan, width)]

        middle.present(memory)
        if is_split:
            self.query_one("#plan-side", LinesView).present(partial(session.side_lines, plan))
        self.call_after_refresh(self._present_table, plan)

    def _present_table(self, plan: Plan) -> None:
        if self.plan is not plan:
            return
        table = self.query_one(PlanTable)
        found = cost_table(
            plan, self.planner.estimator(plan.setup), table.n_columns, shown=table.contexts
        )
        table.present(found, plan.setup)

    def _present_refusal(self, error: EngineError) -> None:
        title = (
            "llama.cpp does not support this configuration"
            if isinstance(error, PresetError)
            else error.title
        )
        way_back = "\n\nPress u to undo the last change." if self.session.past else ""
        self._report.present(partial(refusal_lines, title, f"{error}{way_back}"))
        self.query_one("#plan-side", LinesView).present(lambda _: [])
        self.query_one(PlanTable).present(None, None)

    def action_scroll_report(self, pages: int) -> None:
        for lines in self.query(LinesView):
            lines.page(pages)

    # --- changes by keys ---

    def action_begin_again(self) -> None:
        self.session.restart()
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
            ask(self, change_list(self.session.changes), self.turn)
        elif self.session.has_changes:
            self.notify("There are no suggested changes.")
        else:
            self.notify("The suggested changes are still being computed: wait a moment.")

    def action_fit(self) -> None:
        plan = self._shown_plan()
        if plan is None:
            return
        if plan.max_n_ctx is None:
            self.notify("No context fits: put fewer layers on the GPU, or choose a smaller model.")
            return
        fitting = with_n_ctx(plan.setup.configuration, plan.max_n_ctx)
        self.turn(replace(plan.setup, configuration=fitting))

    # --- changes by lists ---

    def action_choose_model(self) -> None:
        from app.screens.models import ModelsScreen

        setup, folders = self.setup, model_folders()
        now = None if setup is None else setup.configuration.model_path
        bench = partial(fit_context, setup, self.planner)
        loaded = self.session.loaded
        ask(self, ModelsScreen(self._scan, folders, bench, now, loaded=loaded), self.open_model)

    def _choose_file(self, chooser: Chooser, setup: Setup) -> None:
        """List the files, one of which is to be drafted with, projected by, or added."""

        def take(path: Path) -> None:
            if self.setup is not None:
                self.turn(FILES[chooser].add(self.setup, path))

        ask(self, file_list(chooser, setup.configuration, self._scan, self.planner), take)

    def action_choose_card(self) -> None:
        setup = self.setup
        if setup is None:
            self.notify(NO_MODEL)
            return

        def take(chosen: tuple[str | int, ...]) -> None:
            sizes = tuple(each for each in chosen if isinstance(each, int))
            cards = tuple(each for each in chosen if isinstance(each, str))
            self.turn(with_machine(setup, with_gpus(setup.machine, sizes, cards)))

        ask(self, CardsScreen(self.planner.devices(PlannedMachine())), take)

    def action_search(self) -> None:
        if self.session.last_plan is None:
            self.notify(NO_MODEL)
        else:
            ask(self, goal_list(), self._search)

    def _search(self, goal: Goal) -> None:
        """Search away from the screen."""
        setup = self.setup
        if setup is not None:
            search = partial(search_setup, setup, goal, self.planner)
            in_thread(self, "search", search, partial(self._take_found, setup))

    def _take_found(self, asked: Setup, found: SearchResult) -> None:
        # The options may have been turned while it searched.
        if self.setup is asked:
            setup = asked.with_configuration(found.configuration)
            self.session.searched = setup, found
            self.change(setup)

    # --- leaving, presets and export ---

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_load(self) -> None:
        plan = self._shown_plan()
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

        plan = self._shown_plan()
        if plan is not None:
            self.app.push_screen(ExportScreen(plan))

    def action_save(self) -> None:
        plan = self._shown_plan()
        if plan is not None:
            name = model_name(plan.model.file.path)
            save = partial(save_as_preset, self, plan.setup, self._presets_dir)
            ask_line(self, "Name of the preset", name, save)

    def _shown_plan(self) -> Plan | None:
        """The plan; where there is none, a notice says what to do."""
        if self.plan is None:
            self.notify("There is no plan yet: fix the problem on the right, or choose a model.")
        return self.plan
