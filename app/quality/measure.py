"""One measurement of cache quality, from the options to table, JSON and page."""

import contextlib
import shlex
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text as Printed

from app import paths
from app.config import Settings
from app.format import counted
from app.opening import ModelRequest, open_here
from app.planning import keep_report, verdict_of
from app.quality import MOST_TOKENS, USUAL_KINDS
from app.quality.run import MeasurementRun, report_path
from app.render.quality import progress_text, report_lines
from app.tables import PAGE_WIDTH, console, html_page
from engine.clock import Pacer
from engine.configuration import Configuration, KVTypes
from engine.errors import EngineError
from engine.files import replace_file
from engine.policy.choice import checked, has_verdict
from engine.process.laboratory import LaboratoryProcess
from engine.quality.laboratory import LaboratoryPlan, LaboratoryProgress, Note
from engine.quality.records import QualityError, Report, read_report
from engine.quality.request import LaboratoryRequest
from engine.quality.texts import Text, own_texts, read_text_file

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
DIGEST_BYTES = 8
STYLES = {"muted": "dim", "strong": "bold", "good": "green", "bad": "red"}
"""What rich calls the styles of a report's lines."""
LINE_EVERY_S = 10.0
"""Between two lines of progress where they go to a file or a pipe."""
MAX_CHATS = 200
LEAST_LETTERS = 200
"""Of a chat; shorter ones say nothing about a long context."""
_UNWRITABLE = "the HTML report {path} cannot be written ({reason}): use another file for --html"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    kinds: tuple[KVTypes, ...] = ()
    reference: str = "f16"
    text_paths: tuple[Path, ...] = ()
    takes_chats: bool = False
    n_ctx: int | None = None
    n_chunk: int | None = None
    n_tokens: int | None = None
    """Most tokens of all texts; None takes all."""
    asks: bool = True
    takes_times: bool = True


USUAL = Options(tuple(KVTypes.parse(name) for name in USUAL_KINDS.split(",")), n_tokens=MOST_TOKENS)
"""What `kvchat cache-quality` measures where nothing else is said."""


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where reports come from and go to; None is nowhere."""

    json: Path | None = None
    html: Path | None = None
    resume: Path | None = None


def run_measurement(
    options: Options, request: ModelRequest, files: ReportFiles, settings: Settings
) -> int:
    """The exit code, after measuring, showing the table and writing the files.

    Without a file for the report it is kept until it is complete, so that the same command goes on
    with a run that was stopped or killed.

    Raises:
        EngineError: something is wrong before the first text is scored, or the page cannot be
            written.
    """
    configuration = open_here(request, settings, "the laboratory").configuration
    if files.resume is not None:
        read_report(files.resume)  # one that is missing gets no folder for its lock
    files = _going_on(files)
    if files.html is not None:
        check_writable(files.html)
    asked = laboratory_request(options, configuration)
    if options.takes_chats:
        n_chats = sum(text.kind == "chat" for text in asked.texts)
        _note(
            f"{counted(n_chats, 'chat')} read on this machine; the report contains figures and "
            "token counts, no text"
        )
    named = files.json or files.resume
    place = named or _unfinished_path(asked, takes_chats=options.takes_chats)
    with MeasurementRun(place, LaboratoryProcess) as run:
        if named is None:
            run.go_on(asked)
        else:
            _check_is_free(files)
            earlier = None if files.resume is None else read_report(files.resume)
            run.begin(replace(asked, earlier=earlier))
        exit_code = _follow(run)
    if run.report is None or not run.report.measurements:
        return exit_code or EXIT_FAILED
    show(run.report, settings)
    _keep_plan(run.report, asked.configuration, settings)
    if files.html is not None:
        write_page(run.report, settings, files.html)
    if named is None and run.is_complete and run.path is not None:
        run.path.unlink(missing_ok=True)  # behind all that may fail: nothing is measured again
    return exit_code


def _going_on(files: ReportFiles) -> ReportFiles:
    """The files, where the report that --json names is there gone on with: the same command."""
    if files.resume is None and files.json is not None and files.json.exists():
        return replace(files, resume=files.json)
    return files


def _unfinished_path(request: LaboratoryRequest, *, takes_chats: bool) -> Path:
    """Where the report of a command that names no file lies until it is complete.

    The user's chats do not count: they grow, and a report of those before is replaced.
    """
    configuration = request.configuration
    texts = tuple(each for each in request.texts if not takes_chats or each.kind != "chat")
    backend = configuration.backend
    asked = repr((request.plan, texts, takes_chats, request.n_ctx, request.n_most, backend))
    digest = blake2b(asked.encode(), digest_size=DIGEST_BYTES).hexdigest()
    return report_path(configuration.model_path, f"unfinished-{digest}")


def _follow(run: MeasurementRun) -> int:
    """The exit code, after the last event; the first Ctrl+C asks for that, the second does not."""
    with MeasureProgress(console(err=True)) as progress:
        try:
            try:
                _take_all(run, progress)
            except KeyboardInterrupt:
                _note("stopping; the results so far follow")
                run.stop()
                with contextlib.suppress(KeyboardInterrupt):
                    _take_all(run, progress)
                return EXIT_INTERRUPTED
        except EngineError as error:
            if run.report is None or not run.report.measurements:
                raise
            _note(f"{error.title}: {error}", style="red")
    if run.is_complete is None or not run.is_written:
        return EXIT_FAILED
    return 0 if run.is_complete else EXIT_INTERRUPTED


def _take_all(run: MeasurementRun, progress: "MeasureProgress") -> None:
    for event in run:
        match event:
            case LaboratoryProgress():
                progress.show(event)
            case Note(text):
                progress.note(text)
            case _:
                pass


def _keep_plan(report: Report, configuration: Configuration, settings: Settings) -> None:
    """Keep what was measured as a plan, and say which type it names and how to run with it.

    A report without a verdict is none. One that cannot be kept was shown all the same.
    """
    if configuration.backend == "torch":
        return  # a plan chooses llama.cpp's types
    if not has_verdict(report) or not any(row.is_complete for row in report.candidates):
        return
    path, policy = configuration.model_path, settings.cache_policy
    try:
        found = verdict_of(keep_report(report), configuration, policy)
    except EngineError as error:
        _note(f"{error.title}: {error}", style="red")
        return
    assert found is not None, "it has a verdict"
    command = f"kvchat {shlex.quote(str(path))} --kv auto"
    screen = console()
    for text in ("", found.text, f"{command}  runs with {found.pair}"):
        screen.print(text, markup=False, highlight=False, soft_wrap=True)


def laboratory_request(options: Options, configuration: Configuration) -> LaboratoryRequest:
    """What the options ask to be measured of a model.

    Raises:
        QualityError: a text cannot be read, or there is no chat.
    """
    own = own_texts()
    return LaboratoryRequest(
        configuration=configuration,
        plan=_plan(options),
        texts=tuple(_texts(options, own)),
        haystack=tuple(text for text in own if text.kind == "document") if options.asks else (),
        n_ctx=options.n_ctx,
        n_most=options.n_tokens,
    )


def show(report: Report, settings: Settings) -> None:
    """Print a report; its kinds as the user's gates checked them."""
    screen = console()
    for text in _texts_of(report, settings, screen.width):
        screen.print(text, soft_wrap=True)


def _texts_of(report: Report, settings: Settings, width: int) -> Iterator[Printed]:
    gates = settings.cache_policy
    candidates = checked(report, gates) if has_verdict(report) else ()
    for line in report_lines(report, candidates, width):
        text = Printed.assemble(*((run.text, STYLES.get(run.style, "")) for run in line))
        text.rstrip()
        yield text


def write_page(report: Report, settings: Settings, path: Path) -> None:
    """Write a report as an HTML page.

    Raises:
        QualityError: it cannot be written.
    """
    page = html_page(_texts_of(report, settings, PAGE_WIDTH))
    try:
        replace_file(path.resolve(), [page.encode()], is_durable=False)
    except OSError as error:
        raise QualityError(_UNWRITABLE.format(path=path, reason=error.strerror)) from error


def check_writable(page: Path) -> None:
    """Make sure, before anything is measured, that a page can be written.

    Raises:
        QualityError: it cannot.
    """
    try:
        page.resolve().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=page.resolve().parent):
            pass
    except OSError as error:
        raise QualityError(_UNWRITABLE.format(path=page, reason=error.strerror)) from error


def _plan(options: Options) -> LaboratoryPlan:
    plan = LaboratoryPlan(
        options.kinds,
        KVTypes(options.reference, options.reference),
        takes_times=options.takes_times,
    )
    if options.n_chunk is None:
        return plan
    return LaboratoryPlan(plan.kinds, plan.reference, options.n_chunk, plan.takes_times)


def _check_is_free(files: ReportFiles) -> None:
    """Make sure that no earlier report is lost.

    Raises:
        QualityError: the JSON file is there, and is not the one to resume.
    """
    if files.json is None or files.json == files.resume or not files.json.exists():
        return
    raise QualityError(
        f"{files.json} contains another run: to continue that run, pass the file to --resume; "
        "for a new run, choose another file for --json"
    )


def _texts(options: Options, own: tuple[Text, ...]) -> Iterator[Text]:
    """The texts of the user, else those that travel with kvchat."""
    if options.takes_chats:
        yield from chat_texts()
    yield from map(read_text_file, options.text_paths)
    if not options.takes_chats and not options.text_paths:
        yield from own


def chat_texts() -> Iterator[Text]:
    """The branches that are shown of the user's chats, without their titles.

    Raises:
        QualityError: there is no chat that is long enough.
    """
    from app.store.chats import ChatStore  # not needed without chats

    found: list[Text] = []
    if paths.database_path().is_file():
        with ChatStore(paths.database_path()) as store:
            for chat in store.list_chats(limit=MAX_CHATS):
                messages = [] if chat.head_id is None else store.path_to(chat.head_id)
                text = "\n\n".join(f"{each.role}: {each.content}" for each in messages)
                if len(text) >= LEAST_LETTERS:
                    found.append(Text(f"chat {len(found) + 1}", "chat", text))
    if not found:
        raise QualityError("no chat is long enough: use --text FILE instead of --chats")
    yield from found


class MeasureProgress:
    """A bar with the time that is left; where the console is no terminal, a line now and then."""

    def __init__(self, console: Console) -> None:
        self._start_s = time.monotonic()
        self._console = console
        self._pacer = Pacer(LINE_EVERY_S)
        self._bar = Bar(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("loading the model", total=None)

    def __enter__(self) -> "MeasureProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, soft_wrap=True)

    def show(self, reached: LaboratoryProgress) -> None:
        """Move the bar, or print a line where one is due."""
        elapsed_s = time.monotonic() - self._start_s
        if not self._console.is_terminal and self._pacer.is_due():
            with self._pacer.work():
                _note(progress_text(reached, elapsed_s))
        self._bar.update(
            self._task,
            total=reached.n_total,
            completed=reached.n_done,
            description=escape(progress_text(reached, elapsed_s)),
            refresh=True,
        )


def _note(text: str, style: str = "") -> None:
    console(err=True).print(text, style=style, soft_wrap=True)
