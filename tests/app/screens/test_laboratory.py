"""The screen that measures cache types, on a measurement of made-up figures."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from textual.pilot import Pilot

from app.planning import keep_report
from app.quality.measure import USUAL
from app.quality.run import MeasurementRun, earlier_report, report_path, rows_path
from app.render.lines import plain
from app.render.quality import QualityTable
from app.screens.dialogs import AskYes
from app.screens.laboratory import STOPPED, STOPPING, LaboratoryScreen
from app.screens.planner import PlannerScreen
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.select_list import SelectList
from engine.builds import installed_build
from engine.configuration import Configuration, KVTypes
from engine.errors import EngineError, WorkerError
from engine.model.identity import model_identity
from engine.policy.choice import judge
from engine.policy.gates import Gates
from engine.quality.laboratory import (
    LaboratoryEvent,
    LaboratoryFinished,
    LaboratoryProgress,
    Note,
    ReportChanged,
)
from engine.quality.records import Figure, QualityError, Report, Scores, TextFacts, write_report
from engine.quality.records import Measurement as MeasuredKind
from engine.quality.request import LaboratoryRequest
from tests.app.screens.plan_host import Host, SilentDryRun, shows
from tests.engine.quality.made_reports import Q8, Q8_Q4, made_measurement, made_report
from tests.fakes_app import NARROW, WIDE, wait_until
from tests.filled_models import filled_model

HUGE = (200, 50)


def good(found: MeasuredKind) -> MeasuredKind:
    """A measurement that keeps every gate."""

    def better(scores: Scores) -> Scores:
        return replace(scores, same_top=Figure(0.999, 0.998, 1.0))

    parts = tuple(replace(part, scores=better(part.scores)) for part in found.by_text)
    return replace(found, scores=better(found.scores), by_text=parts)


REPORT = made_report(good(made_measurement(Q8, 0.001)), made_measurement(Q8_Q4, 0.4, held=600))


class Scripted:
    """A measurement that says what the test tells it to; a stop ends it with the last report."""

    def __init__(self) -> None:
        self.told: SimpleQueue[LaboratoryEvent | EngineError | None] = SimpleQueue()
        self.requests: list[LaboratoryRequest] = []
        self.is_stopped = self.is_closed = False
        self.last: Report | None = None

    def __call__(self, request: LaboratoryRequest, log_path: Path) -> "Scripted":
        self.requests.append(request)
        return self

    def tell(self, *events: LaboratoryEvent | EngineError) -> None:
        for event in events:
            self.last = (
                event.report if isinstance(event, ReportChanged | LaboratoryFinished) else self.last
            )
            self.told.put(event)

    def __iter__(self) -> Iterator[LaboratoryEvent]:
        while (event := self.told.get()) is not None:
            if isinstance(event, EngineError):
                raise event
            yield event
            if isinstance(event, LaboratoryFinished):
                return

    def stop(self) -> None:
        self.is_stopped = True
        assert self.last is not None
        self.told.put(LaboratoryFinished(self.last, is_complete=False))

    def close(self) -> None:
        self.is_closed = True
        self.told.put(None)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # a plan of an equal model is known
    return filled_model(tmp_path / "made.gguf", "llama")


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


def screen_of(model: Path, scripted: Scripted) -> LaboratoryScreen:
    return LaboratoryScreen(Configuration(model, 2048), scripted)


def text_of(screen: LaboratoryScreen) -> str:
    kinds = screen.query_one("#kinds", SelectList)
    lines = [*kinds.lines]
    if not kinds.rows:
        lines = kinds._text(kinds.size.width)
    for view in screen.query(LinesView):
        lines += view.lines
    return " ".join(" ".join(plain(line) for line in lines).split())


def title_of(screen: LaboratoryScreen) -> str:
    bar = screen.query_one(TitleBar)
    return plain(bar._render_line(bar.size.width))


async def says(pilot: Pilot[None], screen: LaboratoryScreen, *parts: str) -> None:
    await wait_until(pilot, lambda: all(part in text_of(screen) for part in parts))


async def run(pilot: Pilot[None], screen: LaboratoryScreen) -> None:
    await says(pilot, screen, "Nothing was measured of this model yet")
    await pilot.press("r")
    await wait_until(pilot, lambda: screen.is_measuring)


@pytest.mark.parametrize("size", [NARROW, WIDE, HUGE], ids=str)
async def test_the_table_grows_and_ends_in_one_sentence(
    model: Path, scripted: Scripted, size: tuple[int, int]
) -> None:
    screen = screen_of(model, scripted)
    async with Host(screen).run_test(size=size) as pilot:
        await run(pilot, screen)
        scripted.tell(LaboratoryProgress("a chat", 25, 100))
        await wait_until(pilot, lambda: "25 %" in title_of(screen))
        assert "left" in title_of(screen)
        partial = replace(REPORT, measurements=REPORT.measurements[:3])
        scripted.tell(ReportChanged(partial))
        await says(pilot, screen, "q8_0", "comes when all is measured")
        assert "q8_0/q4_0" not in text_of(screen)
        scripted.tell(LaboratoryFinished(REPORT, is_complete=True))
        await says(pilot, screen, "q8_0/q4_0", "q8_0: 2.0x smaller, same top token 99.9 %")
        await wait_until(pilot, lambda: not screen.is_measuring)
    asked = scripted.requests[0]
    assert (asked.plan.kinds, asked.n_most) == (USUAL.kinds, USUAL.n_tokens)
    assert scripted.is_closed


def test_a_column_of_the_table_is_whole_or_not_there_at_any_width() -> None:
    table = QualityTable(REPORT, ())
    for width in range(40, 220):
        lines = [table.head(width), *(table.line(index, width) for index in range(4))]
        assert not any("…" in plain(line) for line in lines), width


async def test_the_marked_kind_has_its_chart_by_position_and_what_the_gates_say(
    model: Path, scripted: Scripted
) -> None:
    screen = screen_of(model, scripted)
    async with Host(screen).run_test(size=HUGE) as pilot:
        await run(pilot, screen)
        scripted.tell(LaboratoryFinished(REPORT, is_complete=True))
        await says(pilot, screen, "✓ q8_0 ")
        await pilot.press("home")
        await says(pilot, screen, "what the others are compared with")
        await pilot.press("end")
        await says(
            pilot, screen, "KL by position, nats", "0-2k", "0.2", "2-8k", "0.8", "noise",
            "long documents", "needles found by depth", "90 %", "3/4",
            "✗ text less likely by 0.2667 nats a token, allowed 0.0140",
        )  # fmt: skip
        rows = text_of(screen)
        assert "✓ q8_0 " in rows
        assert "✗ q8_0/q4_0 " in rows


async def test_escape_stops_keeps_what_was_measured_and_then_goes_back(
    model: Path, scripted: Scripted
) -> None:
    screen = screen_of(model, scripted)
    host = Host(screen)  # type: ignore[arg-type]  # it keeps whatever is given
    async with host.run_test(size=NARROW) as pilot:
        await run(pilot, screen)
        half = replace(
            REPORT,
            measurements=tuple(replace(row, is_complete=False) for row in REPORT.measurements),
        )
        scripted.tell(ReportChanged(half))
        await says(pilot, screen, "q8_0/q4_0")
        await pilot.press("enter")
        assert screen.is_current  # it is not taken while it is measured
        await pilot.press("escape")
        assert scripted.is_stopped
        await wait_until(pilot, lambda: not screen.is_measuring)
        assert STOPPED in title_of(screen)
        assert STOPPING not in title_of(screen)
        assert "q8_0/q4_0" in text_of(screen)
        assert earlier_report(report_path(model, "own")) == half
        await pilot.press("escape")
        await wait_until(pilot, lambda: host.given == [None])


async def test_the_next_run_goes_on_with_the_kept_report(model: Path, scripted: Scripted) -> None:
    path = report_path(model, "own")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(path, REPORT)
    screen = screen_of(model, scripted)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await says(pilot, screen, "q8_0/q4_0", "q8_0: 2.0x smaller")  # and nothing runs
        await pilot.press("r")
        await wait_until(pilot, lambda: bool(scripted.requests))
        assert scripted.requests[0].earlier == REPORT
        assert scripted.requests[0].rows_path == rows_path(path)


async def test_what_the_command_measured_is_shown_and_taken(
    model: Path, scripted: Scripted
) -> None:
    subject = replace(REPORT.subject, model_identity=model_identity(model), build=installed_build())
    found = replace(REPORT, subject=subject)
    keep_report(found, model)
    screen = screen_of(model, scripted)
    host = Host(screen)  # type: ignore[arg-type]  # it keeps whatever is given
    async with host.run_test(size=WIDE) as pilot:
        await says(pilot, screen, "q8_0/q4_0", "q8_0: 2.0x smaller")
        await pilot.press("enter")
        await wait_until(pilot, lambda: host.given == [KVTypes("q8_0", "q8_0")])


async def test_a_kind_is_taken_with_one_key(model: Path, scripted: Scripted) -> None:
    screen = screen_of(model, scripted)
    host = Host(screen)  # type: ignore[arg-type]  # it keeps whatever is given
    async with host.run_test(size=WIDE) as pilot:
        await run(pilot, screen)
        scripted.tell(LaboratoryFinished(REPORT, is_complete=True))
        await wait_until(pilot, lambda: not screen.is_measuring)
        await pilot.press("end", "enter")
        await wait_until(pilot, lambda: host.given == [KVTypes("q8_0", "q4_0")])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (WorkerError("the measurement stopped: killed by signal 9"), "killed by signal 9"),
        (QualityError("no text is long enough: 32 tokens are the least"), "no text is long enough"),
    ],
)
async def test_what_fails_is_a_sentence_and_loses_nothing(
    model: Path, scripted: Scripted, error: EngineError, said: str
) -> None:
    screen = screen_of(model, scripted)
    async with Host(screen).run_test(size=NARROW) as pilot:
        await run(pilot, screen)
        scripted.tell(Note("iq4_nl is left out: \x1b[31mit is odd"), ReportChanged(REPORT), error)
        await says(pilot, screen, said, "q8_0/q4_0", "iq4_nl is left out")
        assert "\x1b" not in text_of(screen)
        assert not screen.is_measuring
        assert "failed: what was measured is kept" in title_of(screen)


async def test_too_little_text_gives_figures_and_no_verdict(
    model: Path, scripted: Scripted
) -> None:
    screen = screen_of(model, scripted)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await run(pilot, screen)
        short = replace(REPORT, texts=(TextFacts("a chat", "chat", 700),))
        scripted.tell(LaboratoryFinished(short, is_complete=True))
        await says(pilot, screen, "No verdict: 700 tokens are too few to choose by", "q8_0/q4_0")


@pytest.mark.parametrize("kind", ["vanished", "recurrent"])
async def test_where_nothing_can_be_measured_it_says_why(
    tmp_path: Path, scripted: Scripted, kind: str
) -> None:
    path = tmp_path / "gone.gguf"
    if kind == "recurrent":
        path = filled_model(tmp_path / "mamba.gguf", "mamba")
    said = "no cache types" if kind == "recurrent" else "is no longer there"
    screen = screen_of(path, scripted)
    async with Host(screen).run_test(size=NARROW) as pilot:
        await says(pilot, screen, "Nothing can be measured", said)
        await pilot.press("r")
        assert not screen.is_measuring
        assert scripted.requests == []


async def test_own_chats_are_read_after_a_question_only(model: Path, scripted: Scripted) -> None:
    screen = screen_of(model, scripted)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await says(pilot, screen, "Nothing was measured")
        await pilot.press("c")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, AskYes))
        await pilot.press("n")
        await wait_until(pilot, lambda: screen.is_current)
        assert not screen.is_measuring
        await pilot.press("c")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, AskYes))
        await pilot.press("y")
        await says(pilot, screen, "there is no chat that is long enough")
        assert scripted.requests == []


async def test_leaving_the_program_ends_the_measurement(model: Path, scripted: Scripted) -> None:
    screen = screen_of(model, scripted)
    async with Host(screen).run_test(size=WIDE) as pilot:
        await run(pilot, screen)
        await wait_until(pilot, lambda: bool(scripted.requests))
    assert scripted.is_closed
    assert not [t for t in threading.enumerate() if "laboratory" in t.name]


async def test_the_planner_takes_the_kind_that_was_measured(
    starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = report_path(starter_path, "own")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(path, made_report(made_measurement(KVTypes("q8_0", "q5_1"), 0.001)))
    screen = PlannerScreen(
        starter_path, Configuration(starter_path, 4096), dry_run=SilentDryRun(),
        presets_dir=tmp_path / "presets",
    )  # fmt: skip
    async with Host(screen).run_test(size=WIDE) as pilot:
        await shows(pilot, screen, "✓ fits")
        bar = screen.query_one(KeyBar)
        assert "q Quality" in "".join(segment.text for segment in bar.render_line(0))
        await pilot.press("q")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, LaboratoryScreen))
        laboratory = pilot.app.screen
        assert isinstance(laboratory, LaboratoryScreen)
        await says(pilot, laboratory, "q8_0/q5_1")
        await pilot.press("end", "enter")
        await wait_until(pilot, lambda: screen.is_current)
        assert screen.setup is not None
        now = screen.setup.configuration
        assert (now.type_k, now.type_v, now.flash_attention) == ("q8_0", "q5_1", "on")
    path.unlink()


async def test_a_model_that_another_kvchat_measures_is_said_and_the_last_figures_stay(
    model: Path, scripted: Scripted
) -> None:
    path = report_path(model, "own")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(path, REPORT)
    screen = screen_of(model, scripted)
    with MeasurementRun(path):
        async with Host(screen).run_test(size=WIDE) as pilot:
            await says(pilot, screen, "q8_0/q4_0", "q8_0: 2.0x smaller")
            await pilot.press("r")
            await says(pilot, screen, "another run of kvchat writes", "q8_0: 2.0x smaller")
            await wait_until(pilot, lambda: not screen.is_measuring)
            assert "failed: what was measured is kept" in title_of(screen)
    assert scripted.requests == []
    assert earlier_report(path) == REPORT


def test_a_kind_is_judged_when_it_was_measured_to_the_end() -> None:
    half = replace(
        REPORT, measurements=tuple(replace(e, is_complete=False) for e in REPORT.measurements)
    )
    for report, signs in ((REPORT, ["✓ ", "✗ "]), (half, ["  ", "  "])):
        table = QualityTable(report, judge(report, Gates()))
        assert [table.line(index, 100)[0].text for index in (2, 3)] == signs


async def test_the_type_of_the_verdict_is_marked_so_that_one_key_takes_it(
    model: Path, scripted: Scripted
) -> None:
    screen = screen_of(model, scripted)
    host = Host(screen)  # type: ignore[arg-type]  # it keeps whatever is given
    async with host.run_test(size=WIDE) as pilot:
        await run(pilot, screen)
        scripted.tell(LaboratoryFinished(REPORT, is_complete=True))
        await wait_until(pilot, lambda: not screen.is_measuring)
        await pilot.press("enter")
        await wait_until(pilot, lambda: host.given == [KVTypes("q8_0", "q8_0")])
    again = screen_of(model, scripted)
    host = Host(again)  # type: ignore[arg-type]  # it keeps whatever is given
    async with host.run_test(size=WIDE) as pilot:
        await says(pilot, again, "q8_0: 2.0x smaller")
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: host.given == [KVTypes("q8_0", "q4_0")])
