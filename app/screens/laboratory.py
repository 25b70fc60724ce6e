"""The cache types of a model, measured: the table while it grows, charts, and the verdict."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import ClassVar, Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen

from app.config import load_settings
from app.planning import KVVerdict, keep_report, known_quality, verdict_of
from app.quality.measure import USUAL, Options, laboratory_request
from app.quality.run import MeasurementRun, Start, earlier_report, report_path, set_aside, why_not
from app.render.lines import Line, Run, wrapped
from app.render.quality import (
    QualityTable,
    begin_lines,
    kind_lines,
    progress_text,
    quality_title,
    verdict_text,
)
from app.sanitize import visible
from app.screens.dialogs import confirm
from app.threads import call_if_open
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.select_list import Row, SelectList
from engine.configuration import Configuration, KVTypes
from engine.errors import EngineError
from engine.model.architecture import read_model
from engine.model.ollama import model_name
from engine.policy.choice import Candidate, judge
from engine.policy.gates import PolicySettings
from engine.process.laboratory import LaboratoryProcess
from engine.quality.laboratory import (
    LaboratoryEvent,
    LaboratoryFinished,
    LaboratoryProgress,
    Note,
    ReportChanged,
)
from engine.quality.records import Report

Texts = Literal["own", "chats"]
WIDTHS = [(0, "-narrow"), (100, "-wide"), (160, "-huge")]
LOADING = "loading the model, reading the first tokens"
STOPPING = "stopping; what was measured is kept"
STOPPED = "stopped: r goes on"
STOPPED_EARLY = "stopped before the first text was through"
READ_CHATS = (
    "Measure on your own chats? kvchat reads them now. Figures and counts of tokens are kept of "
    "them, no words, and nothing leaves this machine."
)


class LaboratoryScreen(Screen[KVTypes | None]):
    """Measures the cache types of a model; the result is the pair to plan with, or None."""

    CSS_PATH: ClassVar[list[str | PurePath]] = [
        "../styles/planner.tcss", "../styles/laboratory.tcss"
    ]  # fmt: skip
    HORIZONTAL_BREAKPOINTS = WIDTHS
    AUTO_FOCUS = "#kinds"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Take", id="laboratory-take", priority=True,
                tooltip="Take the marked cache type into the plan"),
        Binding("r", "run", "Measure", id="laboratory-run",
                tooltip="Measure on kvchat's own texts, or go on where it was stopped"),
        Binding("c", "chats", "Own chats", id="laboratory-chats",
                tooltip="Measure on your own chats, after a question"),
        Binding("n", "anew", "Anew", id="laboratory-anew",
                tooltip="Measure everything again; the last report stays as a file"),
        Binding("escape", "leave", "Stop, back", id="laboratory-back",
                tooltip="Stop, and keep what was measured; while nothing runs, go back"),
        Binding("pageup", "scroll_detail(-1)", "Page up", id="laboratory-page-up", show=False,
                priority=True, tooltip="Scroll the marked kind up"),
        Binding("pagedown", "scroll_detail(1)", "Page down", id="laboratory-page-down",
                show=False, priority=True, tooltip="Scroll the marked kind down"),
    ]  # fmt: skip

    def __init__(self, configuration: Configuration, start: Start = LaboratoryProcess) -> None:
        """Show what was measured of a model.

        Args:
            configuration: The model; its cache types and context do not count.
            start: Starts a measurement in a process of its own.
        """
        super().__init__()
        self._configuration = configuration
        self._start = start
        self._texts: Texts = "own"
        self._report: Report | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self._verdict: KVVerdict | None = None
        self._notes: list[str] = []
        self._problem = ""
        self._status = ""
        self._why_not: str | None = None
        self._under_way: MeasurementRun | None = None
        self._began_at = 0.0

    def compose(self) -> ComposeResult:
        yield TitleBar(id="laboratory-title")
        with Vertical(id="laboratory"):
            yield SelectList(title="cache types", id="kinds")
            yield LinesView(title="verdict", below=None, id="verdict")
            yield LinesView(title="marked", id="kind")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._present()
        self._look()

    def on_unmount(self) -> None:
        if self._under_way is not None:
            self._under_way.close()

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement is under way."""
        return self._under_way is not None

    # --- measuring, away from the screen ---

    @work(thread=True, exclusive=True, group="measure")
    def _look(self) -> None:
        """Find out whether there is something to measure, and what was measured before."""
        try:
            why = why_not(self._configuration)
            found = None if why else self._earlier()
            said = None if found is None else self._choice(found)
        except EngineError as error:
            why, found, said = str(error), None, None
        call_if_open(self, self._take_look, why, found, said)

    @work(thread=True, exclusive=True, group="measure")
    def _measure(
        self, run: MeasurementRun, options: Options, shown: Report | None, *, is_anew: bool
    ) -> None:
        """Follow a measurement to its end; whatever ends it, what was measured is kept."""
        problem, said = "", None
        try:
            with run:
                if is_anew and run.path is not None:
                    set_aside(run.path)
                run.go_on(laboratory_request(options, self._configuration))
                for event in run:
                    call_if_open(self, self._take_event, event)
        except EngineError as error:
            problem = f"{error.title}: {error}"
        try:
            if run.report is not None and run.report.measurements:
                said = self._choice(self._kept(run.report))
            elif shown is not None:
                said = self._choice(shown)
        except EngineError as error:
            problem = problem or f"{error.title}: {error}"
        call_if_open(self, self._take_end, run, said, problem)

    def _earlier(self) -> Report | None:
        """What was measured here on kvchat's own texts; else the newest plan's report."""
        found = earlier_report(self._path("own"))
        if found is not None:
            return found
        return known_quality(read_model(self._configuration.model_path), _policy()).report

    def _kept(self, found: Report) -> Report:
        """A report, which is kept as the model's plan where it has a verdict."""
        has_kind = any(row.is_complete for row in found.candidates)
        if not found.allows_verdict or not has_kind:
            return found
        return keep_report(found, self._configuration.model_path)

    def _choice(self, found: Report) -> KVVerdict | None:
        return verdict_of(found, self._configuration, _policy())

    def _path(self, texts: Texts) -> Path:
        return report_path(self._configuration.model_path, texts)

    # --- what comes ---

    def _take_look(self, why: str | None, found: Report | None, said: KVVerdict | None) -> None:
        if self.is_measuring:
            return
        self._why_not, self._verdict = why, said
        self._show(found)
        self._mark_chosen()

    def _take_event(self, event: LaboratoryEvent) -> None:
        match event:
            case LaboratoryProgress():
                if self._status != STOPPING:
                    self._status = progress_text(event, time.monotonic() - self._began_at)
                self._present_title()
            case Note(text):
                self._notes.append(text)
                self._present_verdict()
            case ReportChanged(found) | LaboratoryFinished(found):
                self._show(found)

    def _take_end(self, run: MeasurementRun, said: KVVerdict | None, problem: str) -> None:
        self._under_way, self._verdict = None, said
        if run.report is not None:
            self._report = run.report
        has_rows = self._report is not None and bool(self._report.measurements)
        self._status = STOPPED if has_rows else STOPPED_EARLY
        if run.is_complete:
            self._status = ""
        if problem:
            self._problem = problem
            self._status = "failed: what was measured is kept" if has_rows else "failed"
        elif run.is_complete:
            self.notify("The measurement is complete, and kept as this model's plan."
                        if said else "The measurement is complete.")  # fmt: skip
        self._show(self._report)
        self._mark_chosen()

    def _mark_chosen(self) -> None:
        """Mark the type that the verdict names, unless the user has marked one: enter takes it."""
        kinds, chosen = self.query_one("#kinds", SelectList), self._verdict
        if self._report is None or chosen is None or kinds.index:
            return
        is_reference = chosen.pair == self._report.subject.reference
        kinds.mark(("reference" if is_reference else "candidate", chosen.pair))

    # --- showing ---

    def _show(self, found: Report | None) -> None:
        self._report = found
        can_judge = found is not None and found.allows_verdict
        self._candidates = judge(found, _policy()) if found is not None and can_judge else ()
        self._present()

    def _present(self) -> None:
        self._present_title()
        self._present_table()
        self._present_verdict()
        self._present_kind()

    def _present_title(self) -> None:
        name = model_name(self._configuration.model_path)
        self.query_one(TitleBar).present(partial(quality_title, name, self._status))

    def _present_table(self) -> None:
        kinds, found = self.query_one("#kinds", SelectList), self._report
        is_empty = found is None or not found.measurements
        self.set_class(is_empty, "-empty")
        if found is None or is_empty:
            kinds.show_text(self._begin_lines)
            return
        table = QualityTable(found, self._candidates)
        rows = [
            Row((row.role, row.kind), partial(table.line, index))
            for index, row in enumerate(table.rows)
        ]
        kinds.show_rows(rows, head=table.head)

    def _begin_lines(self, width: int) -> list[Line]:
        if self.is_measuring:
            text = "The first row comes when the first text was read in every type."
            return wrapped((Run(text, "muted"),), width)
        return begin_lines(self._why_not, len(USUAL.kinds), width)

    def _present_verdict(self) -> None:
        sentence = "" if self._verdict is None else self._verdict.text
        said, problem = verdict_text(self._report, sentence), self._problem
        notes = tuple(self._notes)

        def lines(width: int) -> list[Line]:
            made: list[Line] = []
            if problem:
                made += wrapped((Run("✗ ", "bad"), Run(visible(problem))), width)
            if said:
                made += wrapped((Run(said, "strong" if sentence else "muted"),), width)
            for note in notes:
                made += wrapped((Run("! ", "warn"), Run(visible(note))), width)
            return made

        self.query_one("#verdict", LinesView).present(lines)

    def _present_kind(self) -> None:
        view, found = self.query_one("#kind", LinesView), self._report
        index = self.query_one("#kinds", SelectList).index
        if found is None or index >= len(found.measurements):
            view.present(lambda _: [])
            return
        row = found.measurements[index]
        candidate = self._candidate(row.kind) if row.role == "candidate" else None
        view.set_frame(title=str(row.kind))
        view.present(lambda width: kind_lines(found, row, candidate, width, view.symbols))

    def _candidate(self, kind: KVTypes) -> Candidate | None:
        found = (e for e in self._candidates if e.measured is not None and e.measured.kind == kind)
        return next(found, None)

    def on_select_list_marked(self) -> None:
        self._present_kind()

    # --- keys ---

    def action_scroll_detail(self, pages: int) -> None:
        """Scroll what is known of the marked kind."""
        self.query_one("#kind", LinesView).page(pages)

    def action_run(self) -> None:
        """Measure on kvchat's own texts, or go on with it."""
        self._begin("own")

    def action_chats(self) -> None:
        """Ask, then measure on the user's chats."""
        if self._can_begin():
            confirm(self, READ_CHATS, lambda: self._begin("chats"))

    def action_anew(self) -> None:
        """Measure again what was measured."""
        if not self._can_begin():
            return
        if self._report is None:
            self._begin(self._texts)
        else:
            question = (
                "Measure everything again? The last report stays as a file beside the new one."
            )
            confirm(self, question, self._begin_anew)

    def action_leave(self) -> None:
        """Stop what runs; where nothing runs, go back."""
        if self._under_way is None:
            self.dismiss(None)
            return
        self._status = STOPPING
        self._under_way.stop()
        self._present_title()

    def action_take(self) -> None:
        """Go back with the marked pair of types."""
        index = self.query_one("#kinds", SelectList).index
        found = self._report
        if found is None or index >= len(found.measurements):
            self.notify("Nothing was measured yet: r measures.")
            return
        pair = found.measurements[index].kind
        if not pair.are_of_llama_cpp:
            self.notify(f"{pair} is no type of llama.cpp.")
        elif self._under_way is not None:
            self.notify("It is still measured: esc stops it and keeps what was measured.")
        else:
            self.dismiss(pair)

    def _begin_anew(self) -> None:
        self._begin(self._texts, is_anew=True)

    def _begin(self, texts: Texts, *, is_anew: bool = False) -> None:
        if not self._can_begin():
            return
        if is_anew or texts != self._texts:
            self._report = None
        self._texts, self._verdict, self._status = texts, None, LOADING
        self._notes.clear()
        self._problem = ""
        self._began_at = time.monotonic()
        self._under_way = MeasurementRun(self._path(texts), self._start)
        self._present()
        options = replace(USUAL, takes_chats=texts == "chats")
        self._measure(self._under_way, options, self._report, is_anew=is_anew)

    def _can_begin(self) -> bool:
        if self._under_way is not None:
            self.notify("It is measured already: esc stops it.")
            return False
        if self._why_not is not None:
            self.notify(f"Nothing can be measured: {self._why_not}", severity="error")
            return False
        return True


def _policy() -> PolicySettings:
    return load_settings().settings.cache_policy
