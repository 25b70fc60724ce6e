import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app import paths, quality
from app.cli.main import run
from app.render.lines import plain
from app.render.quality import report_lines
from app.store.chats import ChatStore
from engine.configuration import KVTypes
from engine.errors import WorkerError
from engine.policy.choice import checked
from engine.policy.gates import Gates
from engine.quality.laboratory import (
    LaboratoryEvent,
    LaboratoryFinished,
    LaboratoryProgress,
    Note,
    ReportChanged,
)
from engine.quality.records import QualityError, read_report, write_report
from engine.quality.request import LaboratoryRequest
from tests.app.cli.conftest import MAIN, kvchat, refusal, text_of
from tests.conftest import ROOT
from tests.engine.quality.made_reports import Q8, Q8_Q4, made_measurement, made_report
from tests.support.hostile_seeds import TREE


@pytest.fixture
def report_path(tmp_path: Path) -> Path:
    report = made_report(made_measurement(Q8_Q4, 0.0125))
    write_report(tmp_path / "report.json", report)
    return tmp_path / "report.json"


def test_a_report_is_shown_with_every_row(report_path: Path) -> None:
    shown = text_of("cache-quality", "--show", str(report_path))
    assert "q8_0/q4_0" in shown
    assert "control" in shown
    assert "0.0125" in shown
    assert "q8_0 K with q4_0 V: 2.0x smaller" in shown
    assert max(map(len, shown.splitlines())) < 220


def no_laboratory(*_: object) -> None:
    raise QualityError("there is none")


def test_chats_are_read_without_their_titles(
    monkeypatch: pytest.MonkeyPatch, starter_path: Path
) -> None:
    with pytest.raises(QualityError, match="no chat is long enough"):
        list(quality.chat_texts())
    monkeypatch.setattr(quality, "MIN_CHAT_LENGTH", 1)
    paths.database_path().parent.mkdir(parents=True)
    with ChatStore(paths.database_path()) as store:
        (chat,) = store.add_trees([TREE])
        shown = [] if chat.head_id is None else store.path_to(chat.head_id)
    (text,) = quality.chat_texts()
    assert (text.name, text.kind) == ("chat 1", "chat")
    assert shown
    assert all(message.content in text.text for message in shown)
    monkeypatch.setattr(quality, "start_laboratory", no_laboratory)
    assert "1 chat read" in refusal("cache-quality", str(starter_path), "--chats")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_cut(
    report_path: Path, width: int
) -> None:
    report = read_report(report_path)
    candidates = checked(report, Gates())
    lines = [plain(line) for line in report_lines(report, candidates, width)]
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if re.match(r"✗ q8_0/q4_0 ", line)]
    assert len(rows) == 1
    assert re.match(r"✗ q8_0/q4_0 +\+0\.0063 ", rows[0])
    assert "0.0125" in rows[0]
    assert "97.50 %" in rows[0]


def test_too_little_text_is_reported_and_no_kind_is_praised(tmp_path: Path) -> None:
    report = made_report()
    short = replace(report, texts=report.texts[:1])
    write_report(tmp_path / "short.json", short)
    shown = text_of("cache-quality", "--show", str(tmp_path / "short.json"))
    assert "No verdict: 5,000 tokens" in shown
    assert "x smaller" not in shown


def test_the_page_is_the_report_and_escapes_what_comes_from_outside(tmp_path: Path) -> None:
    report = made_report()
    subject = replace(report.subject, model="<script>x</script>")
    write_report(tmp_path / "r.json", replace(report, subject=subject))
    page = tmp_path / "page.html"
    assert "<script>" in text_of(
        "cache-quality", "--show", str(tmp_path / "r.json"), "--html", str(page)
    )
    assert "<script" not in page.read_text()
    assert "mean KL by position" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--text", "/nowhere/a.txt"], "cannot be read"),
        (["--kinds", "q3_0"], "not a cache type"),
        (["--kinds", " , "], "list of K/V types is empty"),
        (["--backend", "torch", "--kinds", "q8-0"], "not a cache type"),
        (["--backend", "torch", "--all"], "leave out --all"),
        (["--html", "/dev/null/x.html"], "/dev/null/x.html cannot be written"),
    ],
)
def test_bad_input_is_reported_before_anything_is_loaded(
    arguments: list[str], reported: str, starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cache-quality", str(starter_path), *arguments]) in (1, 2)
    assert reported in capsys.readouterr().err
    assert not Path("/nowhere").exists()


def test_an_earlier_report_is_not_overwritten(report_path: Path, starter_path: Path) -> None:
    before = report_path.read_bytes()
    assert "another measurement" in refusal(
        "cache-quality", str(starter_path), "--json", str(report_path)
    )
    assert report_path.read_bytes() == before


@pytest.mark.parametrize(
    "typed",
    [
        ["cache-quality", "--show", "{0}", "--json", "g.json"],
        ["bench", "--show", "{0}", "--json", "g.json"],
        ["export", "m.gguf", "--json", "-o", "m.env"],
    ],
)
def test_an_option_that_would_do_nothing_is_refused(report_path: Path, typed: list[str]) -> None:
    assert "leave out" in refusal(*(each.format(report_path) for each in typed), code=2)


WHOLE = made_report(made_measurement(Q8, 0.001), made_measurement(Q8_Q4, 0.4))
HALF = replace(
    WHOLE, measurements=tuple(replace(row, is_complete=False) for row in WHOLE.measurements)
)


class Laboratory:
    """A laboratory whose events are scripted; errors among them are raised."""

    def __init__(self, *events: LaboratoryEvent | BaseException) -> None:
        self.events = iter(events)
        self.asked: list[LaboratoryRequest] = []
        self.n_stops = 0

    def __call__(self, request: LaboratoryRequest, _: Path) -> "Laboratory":
        self.asked.append(request)
        return self

    def __iter__(self) -> "Laboratory":
        return self

    def __next__(self) -> LaboratoryEvent:
        event = next(self.events)
        if isinstance(event, BaseException):
            raise event
        return event

    def stop(self) -> None:
        self.n_stops += 1

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("events", "code", "printed", "reported"),
    [
        (
            (LaboratoryProgress("q8_0", 1, 2), Note("a note"), LaboratoryFinished(WHOLE, True)),
            0, "To chat with q8_0", "a note",
        ),
        (
            (ReportChanged(HALF), KeyboardInterrupt(), LaboratoryFinished(HALF, False)),
            130, "q8_0/q4_0", "the results so far follow",
        ),
        ((ReportChanged(HALF), KeyboardInterrupt(), KeyboardInterrupt()), 130, "q8_0/q4_0", "stop"),
        ((LaboratoryFinished(WHOLE, False),), 130, "To chat with q8_0", ""),
        ((ReportChanged(WHOLE), WorkerError("it died")), 1, "q8_0/q4_0", "it died"),
        ((WorkerError("it died"),), 1, "", "it died"),
        ((LaboratoryFinished(replace(WHOLE, measurements=()), True),), 1, "", ""),
    ],
)  # fmt: skip
def test_a_run_prints_what_was_measured_however_it_ends(
    events: tuple[LaboratoryEvent | BaseException, ...],
    code: int,
    printed: str,
    reported: str,
    monkeypatch: pytest.MonkeyPatch,
    starter_path: Path,
    tmp_path: Path,
) -> None:
    laboratory = Laboratory(*events)
    monkeypatch.setattr(quality, "start_laboratory", laboratory)
    page = tmp_path / "page.html"
    done = kvchat("cache-quality", str(starter_path), "--kinds", "q8_0", "--html", str(page))
    assert done.returncode == code
    assert printed in done.stdout
    assert bool(printed) == bool(done.stdout)
    assert reported in done.stderr
    assert page.exists() == bool(printed)
    assert laboratory.n_stops == any(isinstance(each, KeyboardInterrupt) for each in events)
    unfinished = list((paths.state_dir() / "cache-quality").glob("*.json"))
    assert bool(unfinished) == (code != 0 and not isinstance(events[0], WorkerError))


@pytest.mark.parametrize(
    ("typed", "n_kinds", "n_most"),
    [
        (["--kinds", "q8_0,f16,Q8_0 , q4_0/q5_1"], 2, 32768),
        (["--kinds", "f16", "--tokens", "0", "--reference", "f32"], 1, None),
        (["--all"], 63, 32768),
        ([], 5, 32768),
        (["--backend", "torch"], 13, 32768),
        (["--backend", "torch", "--kinds", "nf4,kivi4/q3"], 2, 32768),
    ],
)
def test_the_types_and_the_limit_of_a_measurement_are_those_that_were_typed(
    typed: list[str],
    n_kinds: int,
    n_most: int | None,
    monkeypatch: pytest.MonkeyPatch,
    starter_path: Path,
) -> None:
    laboratory = Laboratory()
    monkeypatch.setattr(quality, "start_laboratory", laboratory)
    kvchat("cache-quality", str(starter_path), *typed, "--chunk", "32", "--no-speeds")
    [asked] = laboratory.asked
    assert (len(set(asked.plan.kinds)), asked.n_most) == (n_kinds, n_most)
    assert asked.plan.reference not in asked.plan.kinds
    assert (asked.plan.n_chunk, asked.plan.takes_times) == (32, False)
    assert asked.haystack


def _command(model: Path, folder: Path, *more: str) -> list[str]:
    text, code = folder / "text.md", folder / "code.py"
    text.write_text((ROOT / "docs" / "cache.md").read_text()[:1500])
    code.write_text((ROOT / "engine" / "files.py").read_text()[:3000])
    return [
        sys.executable, "-c", MAIN, "cache-quality", str(model), "--text", str(text),
        "--text", str(code), "--kinds", "q8_0,q4_0,q5_1,q5_0", "--threads", "1", "--no-questions",
        "--no-speeds", *more,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.model
def test_a_real_model_is_measured_and_a_stopped_run_goes_on(
    tmp_path: Path, starter_path: Path
) -> None:
    target = tmp_path / "r.json"
    started = subprocess.Popen(
        _command(starter_path, tmp_path, "--json", str(target)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not target.exists():
        assert started.poll() is None, started.communicate()
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    assert "q5_1" in out
    assert "stops" in err
    assert sum(row.is_complete for row in read_report(target).candidates) == 3

    again = subprocess.run(
        _command(starter_path, tmp_path, "--json", str(target)),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    report = read_report(target)
    q8, q4, *_ = report.candidates
    assert all(row.is_complete for row in report.measurements)
    assert 0 < q8.scores.kl_mean.value < q4.scores.kl_mean.value
    assert q8.scores.same_top.value > 0.9
    assert q4.kind == KVTypes("q4_0", "q4_0")


@pytest.mark.slow
@pytest.mark.model
def test_a_killed_run_without_a_file_goes_on_by_the_same_command(
    tmp_path: Path, starter_path: Path
) -> None:
    started = subprocess.Popen(_command(starter_path, tmp_path), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    folder = paths.state_dir() / "cache-quality"
    while not list(folder.glob("*-unfinished-*.json")):
        assert started.poll() is None, started.communicate()
        time.sleep(0.05)
    started.kill()
    started.communicate()
    [saved] = folder.glob("*.json")
    before = read_report(saved)
    assert len(before.candidates) == 3

    again = subprocess.run(_command(starter_path, tmp_path), capture_output=True, text=True,
                           timeout=600, check=False)  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert f"{sum(text.n_tokens for text in before.texts):,} tokens" in again.stdout
    assert "No verdict" in again.stdout
    assert not list(folder.iterdir())
