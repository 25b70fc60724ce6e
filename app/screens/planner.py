"""The planner: knobs on the left, on the right what they cost."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.timer import Timer

from app.render.charts import GraphSymbols
from app.render.lines import EMPTY, Line, Run
from app.render.plan import (
    command_lines,
    heading_line,
    plan_lines,
    refusal_lines,
    warning_section,
)
from app.render.plan_changes import advice_line, comparison_lines, effect_lines
from app.render.plan_lists import goal_lines
from app.screens.hand_back import hand_back, is_open
from app.screens.plan_actions import PlanActions
from app.screens.plan_choices import LeftPlan
from app.widgets.key_bar import KeyBar
from app.widgets.panels import PlanTitle
from app.widgets.panes import PlanReport
from app.widgets.plan_knobs import PlanKnobs
from app.widgets.plan_table import PlanTable
from engine.configuration import Configuration
from engine.errors import EngineError, PresetError
from engine.events import BufferSize
from engine.memory.dry_run import DryRun
from engine.memory.terms import TermKind
from engine.model.library import ModelEntry
from engine.planning.comparison import compare
from engine.planning.knobs import with_matched_types
from engine.planning.measured import can_measure, loaded_bytes, measured_plan
from engine.planning.planner import Plan, Setup
from engine.planning.table import cost_table
from engine.planning.what_if import arrows, effects, ranked

MEASURE_AFTER_S = 0.4
"""The dry run waits until the knobs rest."""
IDLE_AFTER_S = 0.05
"""What-ifs wait until the plan itself is painted, and a key that is held goes before them."""
COMPARING = "A kept · B the knobs · w swaps · c ends"
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
        left: LeftPlan | None = None,
    ) -> None:
        """Plan a model.

        Args:
            model_path: The model; None lets the user choose one.
            configuration: Where the knobs start; None starts with what suits the machine.
            measured: What llama.cpp has allocated for that configuration, shown beside the plan.
            scan: Finds the models to choose from; None looks into the usual folders.
            presets_dir: Where presets are saved; None is the usual folder.
            dry_run: Measures in the background; None starts llama.cpp's own.
            left: What was planned when the planner was left before; it is shown again.
        """
        super().__init__(measured=measured, scan=scan, presets_dir=presets_dir)
        self._model_path = model_path
        self.loaded = configuration
        is_same = left is not None and _file_of(left.loaded) == _file_of(configuration)
        self._left = left if is_same else None
        self._dry_run = dry_run or DryRun()
        self._measure_timer: Timer | None = None
        self._note = ""
        """Why the dry run gave no numbers."""
        self._idle_timer: Timer | None = None
        self.has_what_ifs = False
        """Whether the changes worth a thought are known for the plan that is shown."""

    def compose(self) -> ComposeResult:
        yield PlanTitle(id="plan-title")
        with Horizontal(id="planner"):
            yield PlanKnobs(id="plan-knobs")
            with Vertical(id="plan-middle"):
                yield PlanReport(title="memory", id="plan-report")
                yield PlanTable(id="plan-table")
            yield PlanReport(title="what to know", id="plan-side")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(PlanKnobs).focus()
        if self._left is None:
            self.begin()
        else:
            self.come_back(self._left)

    def begin(self) -> None:
        """Plan what is loaded, or let a model be chosen."""
        path, loaded = self._model_path, self.loaded
        if loaded is not None and path in (None, loaded.model_path):
            self.open_loaded(loaded)
        elif path is not None:
            self.open_model(str(path))
        else:
            self.present_message("No model is planned yet: m chooses one.")
            self.action_choose_model()

    def on_unmount(self) -> None:
        self._dry_run.close()

    # --- knobs ---

    def on_plan_knobs_turned(self, message: PlanKnobs.Turned) -> None:
        setup = self.setup
        if setup is None or self.last_plan is None:
            return
        chooser = message.knob.chooser
        if chooser is not None and chooser != "device" and message.step > 0:
            self.choose_file(chooser)
            return
        turned = message.knob.step(setup, self.planner.facts_of(setup), message.step)
        if turned != setup:
            self.turn(turned)

    def on_plan_knobs_typed(self, message: PlanKnobs.Typed) -> None:
        read = message.knob.parse
        if self.setup is None or read is None:
            return
        try:
            setup = read(self.setup, message.text)
        except EngineError as error:
            facts = self.planner.facts_of(self.setup)
            self.query_one(PlanKnobs).present(self.setup, facts, str(error))
            return
        self.turn(setup)

    def on_plan_knobs_focused(self) -> None:
        if self.plan is not None:
            # The changes worth a thought may not have been reached yet.
            self._idle(self.plan, self._arrows_only if self.has_what_ifs else self._what_ifs)

    def on_plan_table_chosen(self, message: PlanTable.Chosen) -> None:
        self.turn(message.setup)

    # --- planning ---

    def change(self, setup: Setup) -> None:
        """Plan another setup and show it; the headers of its files are known."""
        facts = self.planner.facts_of(setup)
        setup = with_matched_types(setup, facts)
        if self.setup not in (None, setup):
            self.past.append(self.setup)
        self.setup, self._note = setup, ""
        self.query_one(PlanKnobs).present(setup, facts)
        try:
            plan = self.planner.plan(setup)
        except EngineError as error:
            self.plan = None
            self._present_refusal(error)
            return
        self.effects, self.has_what_ifs = (), False
        self._take(plan)
        self._idle(plan, self._what_ifs)
        if can_measure(plan):
            self._measure_later(plan)

    def _take(self, plan: Plan) -> None:
        self.plan = self.last_plan = plan
        self._present(plan)
        self.call_after_refresh(self._present_table, plan)

    # --- what waits until the plan is painted ---

    def _idle(self, plan: Plan, work: Callable[[Plan], Iterator[None]]) -> None:
        """Work a little at a time, and stop where the plan is another one."""
        if self._idle_timer is not None:
            self._idle_timer.stop()
        steps = work(plan)

        def step() -> None:
            if not is_open(self) or self.setup is not plan.setup or next(steps, self) is self:
                return
            self._idle_timer = self.set_timer(0.001, step)

        self._idle_timer = self.set_timer(IDLE_AFTER_S, step)

    def _arrows_only(self, plan: Plan) -> Iterator[None]:
        # The numbers of the formula on both sides: a dry run measured the plan alone.
        plan = self.planner.plan(plan.setup)
        knobs = self.query_one(PlanKnobs)
        facts = self.planner.facts_of(plan.setup)
        knobs.present_arrows(arrows(knobs.knob, plan, self.planner, facts))
        yield

    def _what_ifs(self, plan: Plan) -> Iterator[None]:
        yield from self._arrows_only(plan)
        plan = self.planner.plan(plan.setup)
        found = []
        for effect in effects(plan, self.planner, self.planner.facts_of(plan.setup)):
            if effect is not None:
                found.append(effect)
            yield
        self.effects, self.has_what_ifs = ranked(found, plan), True
        self.show_again()

    def _measure_later(self, plan: Plan) -> None:
        if self._measure_timer is not None:
            self._measure_timer.stop()
        self._measure_timer = self.set_timer(MEASURE_AFTER_S, lambda: self._measure(plan))

    @work(thread=True, exclusive=True, group="measure")
    def _measure(self, plan: Plan) -> None:
        note, measured = "", plan
        try:
            measured = measured_plan(plan, self._dry_run)
        except EngineError as error:
            note = str(error)
        hand_back(self, self._take_measured, plan, measured, note)

    def _take_measured(self, plan: Plan, measured: Plan, note: str) -> None:
        # The knobs may have been turned while llama.cpp was asked.
        if self.plan is plan:
            self._note = note
            self._take(measured)

    # --- showing ---

    def on_resize(self) -> None:
        if self.setup is not None:
            self.call_after_refresh(self.show_again)

    def show_again(self) -> None:
        """Paint the plan anew."""
        if self.plan is not None:
            self._take(self.plan)

    def _present(self, plan: Plan) -> None:
        width = self.size.width
        title = heading_line(plan, width - 2, self._origin(plan.setup))
        self.query_one(PlanTitle).present((Run(" "), *title))
        is_split = self.has_class("-huge")
        report = self.query_one("#plan-report", PlanReport)
        report.set_frame(title="memory" if self.pinned is None else COMPARING)
        symbols = report.symbols
        report.present(lambda width: self._memory(plan, width, symbols, has_rest=not is_split))
        if is_split:
            self.query_one("#plan-side", PlanReport).present(lambda width: self._rest(plan, width))

    def _origin(self, setup: Setup) -> str:
        """Say where a setup comes from, while nobody has changed it."""
        if setup.configuration == self.loaded and setup.machine.is_here:
            return "as loaded"
        is_left = self._left is not None and setup == self._left.setup
        return "as left" if is_left else ""

    def _present_table(self, plan: Plan) -> None:
        if self.plan is not plan:
            return
        table = self.query_one(PlanTable)
        found = cost_table(
            plan, self.planner.estimator(plan.setup), table.n_columns, shown=table.contexts
        )
        table.present(found, plan.setup)

    def _memory(
        self, plan: Plan, width: int, symbols: GraphSymbols, *, has_rest: bool
    ) -> list[Line]:
        if self.pinned is not None:
            lines = comparison_lines(compare(self.pinned, plan), width, symbols)
        else:
            loaded = self._loaded(plan)
            advice = advice_line(self.effects, plan.verdict)
            report = plan_lines(plan, width, symbols, loaded=loaded, advice=advice)
            lines = [*self._found(plan, width), *report]
        return [*lines, EMPTY, *self._rest(plan, width)] if has_rest else lines

    def _found(self, plan: Plan, width: int) -> list[Line]:
        """What the search says, while its setup is the one that is planned."""
        if self.searched is None or self.searched.setup != plan.setup:
            return []
        return [*goal_lines(self.searched.found, width), EMPTY]

    def _rest(self, plan: Plan, width: int) -> list[Line]:
        note = (f"no dry run: {self._note}",) if self._note else ()
        parts = [
            effect_lines(self.effects, width, " · a takes one"),
            warning_section(plan, width, extra=note),
            command_lines(plan, width),
        ]
        lines: list[Line] = []
        for part in filter(None, parts):
            lines += [*([EMPTY] if lines else []), *part]
        return lines

    def _loaded(self, plan: Plan) -> dict[str, dict[TermKind, int]] | None:
        is_loaded = _file_of(self.loaded) == plan.setup.configuration.model_path
        if not plan.setup.machine.is_here or not is_loaded:
            return None
        return loaded_bytes(self.measured, plan.estimate.devices) if self.measured else None

    def _present_refusal(self, error: EngineError) -> None:
        title = "llama.cpp refuses this" if isinstance(error, PresetError) else error.title
        way_back = "\n\nu takes the last change back." if self.past else ""
        text = f"{error}{way_back}"
        self.query_one("#plan-report", PlanReport).present(
            lambda width: refusal_lines(title, text, width)
        )
        self.query_one("#plan-side", PlanReport).present(lambda _: [])
        self.query_one(PlanTable).present(None, None)

    def present_message(self, text: str) -> None:
        """Show a sentence in the place of a plan."""
        self.query_one("#plan-report", PlanReport).present(lambda _: [(Run(text, "muted"),)])


def _file_of(configuration: Configuration | None) -> Path | None:
    return None if configuration is None else configuration.model_path
