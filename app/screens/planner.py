"""The planner: knobs on the left, on the right what they cost."""

from collections.abc import Callable, Sequence
from pathlib import Path

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.timer import Timer
from textual.worker import get_current_worker

from app.planning.knobs import DRAFT
from app.planning.loaded import loaded_bytes
from app.planning.measuring import can_measure, measured_plan
from app.planning.plan import Plan, Setup
from app.planning.table import cost_table
from app.render.lines import EMPTY, Line, Run
from app.render.plan import (
    command_lines,
    heading_line,
    plan_lines,
    refusal_lines,
    table_section,
    warning_section,
)
from app.render.plan_table import n_columns
from app.screens.plan_actions import PlanActions
from app.widgets.key_bar import KeyBar
from app.widgets.plan_knobs import PlanKnobs
from app.widgets.plan_report import PlanReport
from app.widgets.plan_title import PlanTitle
from engine.configuration import Configuration
from engine.errors import EngineError, PresetError
from engine.events import BufferSize
from engine.memory.dry_run import DryRun
from engine.memory.estimate import TermKind
from engine.model.library import ModelEntry

MEASURE_AFTER_S = 0.4
"""The dry run waits until the knobs rest."""
WIDTHS = [(0, "-narrow"), (100, "-wide"), (160, "-huge")]


class PlannerScreen(PlanActions):
    """Gives the configuration to load, None to stay with what is there."""

    CSS_PATH = "../styles/planner.tcss"
    HORIZONTAL_BREAKPOINTS = WIDTHS

    def __init__(
        self,
        model_path: Path | None,
        configuration: Configuration | None,
        *,
        measured: tuple[BufferSize, ...] = (),
        scan: Callable[[], Sequence[ModelEntry]] | None = None,
        presets_dir: Path | None = None,
        dry_run: DryRun | None = None,
    ) -> None:
        """Plan a model.

        Args:
            model_path: The model; None lets the user choose one.
            configuration: Where the knobs start; None starts with what suits the machine.
            measured: What llama.cpp has allocated for that configuration, shown beside the plan.
            scan: Finds the models to choose from; None looks into the usual folders.
            presets_dir: Where presets are saved; None is the usual folder.
            dry_run: Measures in the background; None starts llama.cpp's own.
        """
        super().__init__(measured=measured, scan=scan, presets_dir=presets_dir)
        self._first = (model_path, configuration)
        self._dry_run = dry_run or DryRun()
        self._measure_timer: Timer | None = None
        self._note = ""
        """Why the dry run gave no numbers."""

    def compose(self) -> ComposeResult:
        yield PlanTitle(id="plan-title")
        with Horizontal(id="planner"):
            yield PlanKnobs(id="plan-knobs")
            yield PlanReport(title="memory", id="plan-report")
            yield PlanReport(title="export", id="plan-side")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(PlanKnobs).focus()
        path, configuration = self._first
        if configuration is not None and path in (None, configuration.model_path):
            self.open_setup(Setup(configuration))
        elif path is not None:
            self.open_model(path)
        else:
            self.present_message("No model is planned yet: m chooses one.")
            self.action_choose_model()

    def on_unmount(self) -> None:
        self._dry_run.close()

    # --- knobs ---

    def on_plan_knobs_turned(self, message: PlanKnobs.Turned) -> None:
        setup, plan = self.setup, self.last_plan
        if setup is None or plan is None:
            return
        turned = message.knob.turned(setup, plan.model, message.step)
        if message.knob.name == DRAFT and message.step > 0:
            self.choose_draft()
        elif turned != setup:
            self.change(turned)

    def on_plan_knobs_typed(self, message: PlanKnobs.Typed) -> None:
        read = message.knob.read
        if self.setup is None or read is None:
            return
        try:
            setup = read(self.setup, message.text)
        except EngineError as error:
            self.query_one(PlanKnobs).present(self.setup, str(error))
            return
        self.change(setup)

    # --- planning ---

    def change(self, setup: Setup) -> None:
        """Plan another setup and show it; the headers of its models are known."""
        self.setup, self._note = setup, ""
        self.query_one(PlanKnobs).present(setup)
        try:
            plan = self.planner.plan(setup)
        except EngineError as error:
            self.plan = None
            self._present_refusal(error)
            return
        self._take(plan)
        if can_measure(plan):
            self._measure_later(plan)

    def _take(self, plan: Plan) -> None:
        self.plan = self.last_plan = plan
        self._present(plan)

    def _measure_later(self, plan: Plan) -> None:
        if self._measure_timer is not None:
            self._measure_timer.stop()
        self._measure_timer = self.set_timer(MEASURE_AFTER_S, lambda: self._measure(plan))

    @work(thread=True, exclusive=True, group="measure")
    def _measure(self, plan: Plan) -> None:
        worker = get_current_worker()
        note, measured = "", plan
        try:
            measured = measured_plan(plan, self._dry_run)
        except EngineError as error:
            note = str(error)
        if not worker.is_cancelled and self.is_attached:
            self.app.call_from_thread(self._take_measured, plan, measured, note)

    def _take_measured(self, plan: Plan, measured: Plan, note: str) -> None:
        # The knobs may have been turned while llama.cpp was asked.
        if self.plan is plan:
            self._note = note
            self._take(measured)

    # --- showing ---

    def on_resize(self) -> None:
        if self.setup is not None:
            self.call_after_refresh(self._show_again)

    def _show_again(self) -> None:
        if self.plan is not None:
            self._present(self.plan)

    def _present(self, plan: Plan) -> None:
        width = self.size.width
        title = heading_line(plan, width - 2)
        self.query_one(PlanTitle).present((Run(" "), *title))
        is_split = self.has_class("-huge")
        self.query_one("#plan-report", PlanReport).present(
            lambda width: self._memory(plan, width, has_rest=not is_split)
        )
        if is_split:
            self.query_one("#plan-side", PlanReport).present(lambda width: self._rest(plan, width))

    def _memory(self, plan: Plan, width: int, *, has_rest: bool) -> list[Line]:
        lines = plan_lines(plan, width, loaded=self._loaded(plan))
        return [*lines, EMPTY, *self._rest(plan, width)] if has_rest else lines

    def _rest(self, plan: Plan, width: int) -> list[Line]:
        table = cost_table(plan, self.planner.estimator(plan.setup), n_columns(width))
        parts = [
            table_section(table, width),
            warning_section(
                plan, width, extra=(f"no dry run: {self._note}",) if self._note else ()
            ),
            command_lines(plan, width),
        ]
        lines: list[Line] = []
        for part in filter(None, parts):
            lines += [*([EMPTY] if lines else []), *part]
        return lines

    def _loaded(self, plan: Plan) -> dict[str, dict[TermKind, int]] | None:
        first = self._first[1]
        if (
            plan.setup.vram_bytes
            or first is None
            or first.model_path != plan.setup.configuration.model_path
        ):
            return None
        return loaded_bytes(self.measured, plan.estimate.devices) if self.measured else None

    def _present_refusal(self, error: EngineError) -> None:
        title = "llama.cpp refuses this" if isinstance(error, PresetError) else error.title
        self.query_one("#plan-report", PlanReport).present(
            lambda width: refusal_lines(title, str(error), width)
        )
        self.query_one("#plan-side", PlanReport).present(lambda _: [])

    def present_message(self, text: str) -> None:
        """Show a sentence in the place of a plan."""
        self.query_one("#plan-report", PlanReport).present(lambda _: [(Run(text, "muted"),)])
