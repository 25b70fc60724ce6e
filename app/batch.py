"""Answer a file of prompts in parallel; a second run continues where the first one stopped.

Each line of the file is a JSON object with a prompt or messages, and settings of its own. Each
result is one line, appended whole when its reply ends: a stopped run loses only running replies.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.opening import ModelRequest
from engine.configuration import (
    Adapter,
    Configuration,
    MinP,
    RepetitionPenalty,
    SamplingSettings,
    Temperature,
    TopP,
)
from engine.errors import EngineError
from engine.events import Event, Failed, Finished, FinishReason
from engine.files import is_file, read_bytes, reason_of
from engine.grammar.source import GrammarError, check_grammar
from engine.model.identity import model_identity
from engine.parsing import parse_json
from engine.process.blocking_client import BlockingClient, EngineStoppedError
from engine.requests import GenerationRequest, Grammar, Message
from engine.validation import explain, explain_faults

MAX_BYTES = 1 << 30
"""Maximum bytes of a file of prompts or results."""
HASH_LENGTH = 16
REPORT_EVERY = 10_000
"""Lines between two calls of `report`."""

Natural = Annotated[int, Field(ge=0, lt=1 << 63)]
Positive = Annotated[int, Field(ge=1, lt=1 << 31)]


class BatchError(EngineError):
    """The files of a batch cannot be read or written."""

    title = "The batch cannot run"


class _BatchMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class _Line(BaseModel):
    """The keys of a line; a missing one has the value of the command."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    id: str | int | None = None
    prompt: str | None = None
    messages: list[_BatchMessage] | None = None
    system: str | None = None
    raw: bool = False
    max_tokens: Positive | None = None
    seed: Natural | None = None
    stop: str | list[str] | None = None
    stop_tokens: list[Natural] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    lora: list[str] | None = None
    temperature: Temperature | None = None
    top_k: Natural | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    repetition_window: Natural | None = None

    def check(self) -> None:
        """Refuse keys that contradict each other with a `ValueError`."""
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of `prompt` and `messages` must be set")
        if not (self.messages or (self.prompt or "").strip()):
            raise ValueError("the prompt is empty: write a prompt")
        if self.raw and (self.messages is not None or self.system):
            raise ValueError("`raw` sends the prompt unchanged: remove `messages` and `system`")
        if self.json_schema is not None and self.grammar is not None:
            raise ValueError("`json_schema` and `grammar` are both set: remove one of the two")

    def request(self, base: GenerationRequest, system: str) -> GenerationRequest:
        """The command's request with the settings of the line."""
        own = {name: getattr(self, name) for name in _SAMPLING}
        given = {name: value for name, value in own.items() if value is not None}
        if self.stop_tokens is not None:
            given["stop_tokens"] = tuple(self.stop_tokens)
        stop, grammar = base.stop if self.stop is None else self.stop, self._grammar()
        return replace(
            base,
            messages=() if self.raw else self._messages(system),
            raw_prompt=self.prompt if self.raw else None,
            sampling=replace(base.sampling, **given),
            max_tokens=self.max_tokens or base.max_tokens,
            seed=base.seed if self.seed is None else self.seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            grammar=base.grammar if grammar is None else grammar,
            adapters=base.adapters if self.lora is None else tuple(map(_adapter, self.lora)),
        )

    def _grammar(self) -> Grammar | None:
        """The checked schema or grammar of the line; None if it has neither."""
        if self.json_schema is not None:
            grammar = Grammar(json.dumps(self.json_schema), name="of the line")
        elif self.grammar is not None:
            grammar = Grammar(self.grammar, is_schema=False, name="of the line")
        else:
            return None
        _check(grammar)
        return grammar

    def _messages(self, system: str) -> tuple[Message, ...]:
        asked = [Message(each.role, each.content) for each in self.messages or ()]
        if self.prompt is not None:
            asked = [Message("user", self.prompt)]
        instruction = system if self.system is None else self.system
        has_own = bool(asked) and asked[0].role == "system"
        return (*([Message("system", instruction)] if instruction and not has_own else []), *asked)


_ANSWER_RULES = {"json_schema", "grammar", "stop_tokens"}
"""Settings whose keys in a line differ from those of the command, which names files."""
_SAMPLING = _Line.model_fields.keys() & {
    each.name for each in fields(SamplingSettings) if each.name not in _ANSWER_RULES
}
"""Sampling settings with the same key in a line."""


_check = lru_cache(maxsize=64)(check_grammar)
"""Most lines of a file have the same schema."""


def _adapter(text: str) -> Adapter:
    adapter = Adapter.read(text)
    if not is_file(adapter.path):
        raise ValueError(f"the adapter {adapter.path} does not exist: check the path")
    return adapter


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line that can be answered."""

    number: int
    """Number of the line, from 1."""
    id: str | int | None
    digest: str
    """Digest of the request and of the model."""
    request: GenerationRequest

    @property
    def key(self) -> tuple[str, str]:
        """Identifies its result in the file of results."""
        return _key(self.id, self.number, self.digest)


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """One line that cannot be answered, and why."""

    number: int
    reason: str


def _key(id_: object, line: object, digest: object) -> tuple[str, str]:
    return json.dumps(id_) if id_ is not None else f"line {line}", str(digest)


def answering(configuration: Configuration) -> str:
    """Identify the model of a batch and all of its settings that change a text."""
    if configuration.server is not None:
        return configuration.address
    now = configuration
    settings = (now.backend, now.dtype, now.kv_types, now.kv_cache, now.decode_plan)
    return repr((model_identity(now.model_path), *settings, now.mmproj_path, now.adapters))


def read_requests(
    path: Path,
    base: GenerationRequest,
    system: str,
    report: Callable[[int], object] = lambda _: None,
    *,
    answered_by: str = "",
) -> tuple[list[BatchRequest], list[BrokenLine]]:
    """Read a file: the lines that can be answered, and those that cannot.

    `base` and `system` are for lines that set neither; `answered_by` is the result of `answering`.

    Raises:
        BatchError: the file cannot be read.
    """
    requests: list[BatchRequest] = []
    broken: list[BrokenLine] = []
    seen: dict[str | int, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        if number % REPORT_EVERY == 0:
            report(number)
        if not line.strip():
            continue
        try:
            found = _read_line(number, line, base, system, answered_by)
            if found.id in seen:
                raise ValueError(f"line {seen[found.id]} also has the id {found.id!r}: change one")
        except ValueError as error:
            broken.append(BrokenLine(number, str(error)))
        else:
            if found.id is not None:
                seen[found.id] = number
            requests.append(found)
    return requests, broken


def _read_line(
    number: int, line: bytes, base: GenerationRequest, system: str, answered_by: str
) -> BatchRequest:
    try:
        parsed = _Line.model_validate(_object(line))
        parsed.check()
        request = parsed.request(base, system)
    except ValidationError as error:
        raise ValueError(explain_faults(explain(error, _Line))) from error
    except GrammarError as error:
        raise ValueError(str(error)) from error
    identity = repr((request, answered_by))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:HASH_LENGTH]
    return BatchRequest(number, parsed.id, digest, request)


def _object(line: bytes) -> dict[str, object]:
    """The JSON object of a line; `ValueError` has the position without JSON's own line number."""
    try:
        value = parse_json(line)
    except json.JSONDecodeError as error:
        why = f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}"
        raise ValueError(f"not valid JSON: {why}") from error
    except UnicodeDecodeError as error:
        raise ValueError("the line is not UTF-8 text: save the file as UTF-8") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _lines(path: Path) -> list[bytes]:
    try:
        return read_bytes(path, limit=MAX_BYTES).split(b"\n")
    except OSError as error:
        raise BatchError(f"{path} cannot be read: {reason_of(error)}") from error


class ResultsFile:
    """The file that results are appended to, locked against other runs."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            BatchError: it cannot be written, or another run writes it.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise BatchError(f"{path} cannot be written: {reason_of(error)}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise BatchError(
                f"another run is writing {path}: wait until that run ends, or use another file"
            ) from error
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def done(self) -> set[tuple[str, str]]:
        """The key of each result; other lines are ignored.

        Raises:
            BatchError: it cannot be read.
        """
        lines = _lines(self._path)
        if lines[-1]:  # a power cut left a partial line
            self._write(b"\n")
        found: set[tuple[str, str]] = set()
        for line in filter(None, lines):
            try:
                value = parse_json(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.add(_key(value.get("id"), value.get("line"), value.get("request")))
        return found

    def append(self, values: dict[str, object]) -> None:
        """Append a result as one line, whole or not at all, and wait until it is on disk.

        Raises:
            BatchError: it cannot be written.
        """
        self._write(json.dumps(values, ensure_ascii=False).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        length = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) < len(data):
                os.ftruncate(self._descriptor, length)
                raise BatchError(f"{self._path} cannot be written: the disk is full")
            with suppress(OSError):  # a pipe or a device cannot be synced
                os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, length)
            raise BatchError(f"{self._path} cannot be written: {reason_of(error)}") from error


@dataclass(slots=True)
class BatchProgress:
    """Progress of a batch."""

    n_all: int
    n_done: int = 0
    """Results in the file, including those of earlier runs."""
    n_tokens: int = 0
    """Tokens of this run."""
    failed: list[BrokenLine] = field(default_factory=list)
    elapsed_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.n_done:,} of {self.n_all:,}"

    @property
    def tps(self) -> float:
        """Tokens per second of all replies together."""
        return self.n_tokens / self.elapsed_s if self.elapsed_s else 0.0


def answer_all(
    engine: BlockingClient,
    requests: Iterable[BatchRequest],
    results: ResultsFile,
    progress: BatchProgress,
    *,
    n_at_once: int,
    model: str = "",
    clock: Callable[[], float] = time.monotonic,
    observe: Callable[[Event], None] = lambda _: None,
) -> Iterator[BatchProgress]:
    """Answer requests and append each result; yields the updated progress after each.

    Raises:
        BatchError: a result cannot be written.
        WorkerError: the engine cannot be restarted; earlier results are in the file.
    """
    began = clock()
    since: dict[int, float] = {}

    def asked() -> Iterator[BatchRequest]:
        for each in requests:
            since[each.number] = clock()
            yield each

    for one, event in _events(engine, asked(), n_at_once):
        observe(event)
        match event:
            case Failed(title, message):
                progress.failed.append(BrokenLine(one.number, f"{title}: {message}"))
            case Finished(reason=FinishReason.CANCELLED):
                pass
            case Finished() as finished:
                results.append(result_of(one, finished, clock() - since[one.number], model))
                progress.n_done += 1
                progress.n_tokens += finished.stats.n_emitted or 0
            case _:
                continue
        progress.elapsed_s = clock() - began
        yield progress


def _events(
    engine: BlockingClient, requests: Iterator[BatchRequest], n_at_once: int
) -> Iterator[tuple[BatchRequest, Event]]:
    """The events of every reply.

    If the engine ends during one request, that request failed; during several, each of them is
    requested again alone.
    """
    suspects: list[BatchRequest] = []
    while True:
        source, n = (iter(suspects), 1) if suspects else (requests, n_at_once)
        running: dict[int, BatchRequest] = {}
        try:
            yield from _follow(engine, source, n, running)
        except EngineStoppedError as error:
            if not running:
                raise
            unfinished = [*running.values()]
            if len(unfinished) == 1:
                yield unfinished.pop(), Failed(error.event.title, error.event.message)
            suspects = [*unfinished, *source] if suspects else unfinished
        else:
            if not suspects:
                return
            suspects = []


def _follow(
    engine: BlockingClient,
    source: Iterator[BatchRequest],
    n_at_once: int,
    running: dict[int, BatchRequest],
) -> Iterator[tuple[BatchRequest, Event]]:
    """The events of the replies to `source`; `running` holds the unfinished requests."""

    def asked() -> Iterator[tuple[int, GenerationRequest]]:
        for one in source:
            running[one.number] = one
            yield one.number, one.request

    for each in engine.replies(asked(), n_at_once=n_at_once):
        yield running[each.reply_id], each.event
        if isinstance(each.event, Finished | Failed):
            del running[each.reply_id]


def result_of(
    one: BatchRequest, finished: Finished, latency_s: float, model: str
) -> dict[str, object]:
    """The values of a result's line; times in seconds."""
    counts = (
        "n_prompt", "n_reused", "n_emitted", "n_rounds", "n_verified", "n_accepted",
        "first_token_s", "decode_s",
    )  # fmt: skip
    return {
        "id": one.id,
        "line": one.number,
        "request": one.digest,
        "model": model,
        "text": finished.text,
        "token_ids": finished.token_ids,
        "finish_reason": finished.reason.value,
        "fits_grammar": finished.fits_grammar,
        "seed": finished.seed,
        **{name: getattr(finished.stats, name) for name in counts},
        "latency_s": round(latency_s, 6),
    }


def with_slots(request: ModelRequest, one: Configuration, n_at_once: int) -> ModelRequest:
    """The request of a model for parallel replies, each with its `n_ctx`.

    Without `n_ctx`, the replies share the context of one reply's configuration.
    """
    each = max(one.n_ctx // n_at_once, 1) if request.n_ctx is None else request.n_ctx
    rules = {**request.rules, "n_slots": n_at_once}
    return replace(request, n_ctx=each * n_at_once, rules=rules)
