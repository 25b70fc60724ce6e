"""A measurement of cache types: its texts, and the file of its report, which a run continues."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Self

from app import paths
from engine.configuration import Configuration, KVTypes
from engine.files import FileLock, acquire_lock, reason_of
from engine.quality.laboratory import (
    LaboratoryEvent,
    LaboratoryFinished,
    LaboratoryPlan,
    ReportChanged,
)
from engine.quality.records import QualityError, Report, read_report, write_report
from engine.quality.request import LaboratoryRequest
from engine.quality.texts import Text, own_texts, read_text_file

if TYPE_CHECKING:
    from engine.process.laboratory import LaboratoryProcess

MAX_CHATS = 200
MIN_CHAT_LENGTH = 200
"""Characters of a chat; shorter ones show nothing of a long context."""
MAX_NAME = 48
"""Characters of a model's name in that of its report: file systems allow 255 bytes."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `kvchat cache-quality`."""

    reference: str
    text_paths: tuple[Path, ...]
    takes_chats: bool
    n_ctx: int | None
    n_chunk: int | None
    n_tokens: int | None
    """Maximum tokens of all texts; None is no limit."""
    asks: bool
    takes_times: bool
    kinds: tuple[KVTypes, ...] = ()

    def request(self, configuration: Configuration) -> LaboratoryRequest:
        """The measurement of a model."""
        own = own_texts()
        plan = LaboratoryPlan(
            self.kinds, KVTypes(self.reference, self.reference), takes_times=self.takes_times
        )
        if self.n_chunk is not None:
            plan = replace(plan, n_chunk=self.n_chunk)
        texts = [*(chat_texts() if self.takes_chats else ()), *map(read_text_file, self.text_paths)]
        return LaboratoryRequest(
            configuration=configuration,
            plan=plan,
            texts=tuple(texts or own),
            haystack=tuple(text for text in own if text.kind == "document") if self.asks else (),
            n_ctx=self.n_ctx,
            n_most=self.n_tokens,
        )


def chat_texts() -> list[Text]:
    """The current branches of the user's chats, without their titles."""
    from app.store.chats import ChatStore  # not needed without chats

    found: list[Text] = []
    if paths.database_path().is_file():
        with ChatStore(paths.database_path()) as store:
            for chat in store.list_chats(limit=MAX_CHATS):
                messages = [] if chat.head_id is None else store.path_to(chat.head_id)
                text = "\n\n".join(f"{each.role}: {each.content}" for each in messages)
                if len(text) >= MIN_CHAT_LENGTH:
                    found.append(Text(f"chat {len(found) + 1}", "chat", text))
    if not found:
        raise QualityError("no chat is long enough: use --text FILE instead of --chats")
    return found


def start_laboratory(request: LaboratoryRequest, log_path: Path) -> "LaboratoryProcess":
    """Start the process of a measurement."""
    from engine.process.laboratory import LaboratoryProcess  # imports llama.cpp

    return LaboratoryProcess(request, log_path)


class MeasurementRun:
    """Iterator over the events of a measurement, whose report is written after every change.

    A stop, a kill or an error leaves the report so far. The file is locked from entering to
    leaving, which ends the process.

    Args:
        path: The report's file.
        note: Called if the report cannot be written.
        start: Starts the process; None is `start_laboratory`.
    """

    def __init__(
        self,
        path: Path,
        note: Callable[[str], None],
        start: "Callable[[LaboratoryRequest, Path], LaboratoryProcess] | None" = None,
    ) -> None:
        self.path = path
        self.report: Report | None = None
        """None before the first change."""
        self.is_complete: bool | None = None
        """Whether nothing was stopped; None until the last event."""
        self.is_written = True
        """Whether the file has the report."""
        self._note = note
        self._start = start or start_laboratory
        self._lock: FileLock | None = None
        self._process: LaboratoryProcess | None = None
        self._events: Iterator[LaboratoryEvent] = iter(())
        self._instead: LaboratoryRequest | None = None
        """The request without an earlier report, which may be of another measurement."""

    def __enter__(self) -> Self:
        """Lock the file.

        Raises:
            QualityError: another run writes it, or it cannot be written.
        """
        try:
            self._lock = acquire_lock(self.path.with_name(f"{self.path.name}.lock"))
        except OSError as error:
            raise QualityError(
                f"{self.path} cannot be written ({reason_of(error)}): use another file"
            ) from error
        if self._lock is None:
            raise QualityError(
                f"another run of kvchat is writing {self.path}: wait until that run ends, or stop "
                "that run"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.close()
        if self._lock is not None:
            self._lock.close()

    def begin(self, request: LaboratoryRequest, *, replaces: bool) -> None:
        """Start to measure what the report in the file lacks.

        Args:
            request: What to measure.
            replaces: Whether a damaged report, and one of other texts, settings or builds, is moved
                aside; else it is refused.

        Raises:
            QualityError: the report is damaged.
        """
        try:
            earlier = read_report(self.path) if self.path.exists() else None
        except QualityError:
            if not replaces:
                raise
            earlier = None
            self._move_aside()
        self._instead = request if replaces and earlier is not None else None
        self._open(replace(request, earlier=earlier))

    def stop(self) -> None:
        """Stop soon; the last event follows with the results so far."""
        if self._process is not None:
            self._process.stop()

    def __iter__(self) -> Iterator[LaboratoryEvent]:
        return self

    def __next__(self) -> LaboratoryEvent:
        """Wait for the next event and return it."""
        try:
            event = next(self._events)
        except QualityError:
            if self._instead is None:
                raise
            request, self._instead = self._instead, None
            self._move_aside()
            self._open(request)
            return next(self)
        if isinstance(event, ReportChanged | LaboratoryFinished):
            self._instead = None
            self._save(event.report)
        if isinstance(event, LaboratoryFinished):
            self.is_complete = event.is_complete
        return event

    def _open(self, request: LaboratoryRequest) -> None:
        if self._process is not None:
            self._process.close()
        self._process = self._start(request, paths.state_dir() / "laboratory.log")
        self._events = iter(self._process)

    def _save(self, report: Report) -> None:
        could_write, self.report = self.is_written, report
        try:
            write_report(self.path, report)
            self.is_written = True
        except QualityError as error:
            self.is_written = False
            if could_write:
                self._note(str(error))

    def _move_aside(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(self.path.with_name(f"{self.path.name}.before"))


def unfinished_path(request: LaboratoryRequest, *, takes_chats: bool) -> Path:
    """The file of a report until it is complete, if the user names none.

    Chats do not count: they grow, and a report of earlier chats is replaced.
    """
    model = request.configuration.model_path
    texts = tuple(each for each in request.texts if not takes_chats or each.kind != "chat")
    backend = request.configuration.backend
    asked = repr((request.plan, texts, takes_chats, request.n_ctx, request.n_most, backend))
    digest = blake2b(asked.encode(), digest_size=8).hexdigest()
    place = blake2b(os.fsencode(model.absolute()), digest_size=4).hexdigest()
    name = f"{model.stem[:MAX_NAME]}-{place}-unfinished-{digest}.json"
    return paths.state_dir() / "cache-quality" / name
