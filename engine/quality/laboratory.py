"""One measurement from texts to the report, as a series of events.

All contexts that memory holds go through the texts side by side, so that the reference is computed
once for them; with more kinds than that, it is computed once for each group.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import numpy as np
import psutil

from engine.clock import Stopwatch
from engine.configuration import KVTypes
from engine.errors import DecodeAborted, ModelLoadError
from engine.memory.units import FLOAT_BYTES
from engine.quality.cost import LEAST_CTX, n_timed, shape_of, time_kinds
from engine.quality.metrics import Rows
from engine.quality.records import Cost, Measurement, QualityError, Report, Role
from engine.quality.row_store import RowKey, write_rows
from engine.quality.scoring import (
    FREE,
    BatchShape,
    Contestant,
    ContestantError,
    KindOpener,
    Turn,
    score,
)
from engine.quality.summary import N_DRAWS, measurement_of
from engine.quality.texts import Document

N_CHUNK = 64
"""Tokens of a batch: its logits lie in memory once for each context."""
MEMORY_SHARE = 0.6
"""Of the free memory that contexts may take."""
F16 = KVTypes("f16", "f16")


@dataclass(frozen=True, slots=True)
class LaboratoryPlan:
    """What is measured, and how."""

    kinds: tuple[KVTypes, ...]
    reference: KVTypes = F16
    n_chunk: int = N_CHUNK
    takes_times: bool = True
    memory_bytes: int | None = None
    """What contexts may take; None is `MEMORY_SHARE` of what is free."""

    @property
    def contexts(self) -> list[tuple[Role, KVTypes]]:
        """The reference, the control and the kinds."""
        first: list[tuple[Role, KVTypes]] = [("reference", self.reference)]
        return [*first, ("control", self.reference), *(("candidate", e) for e in self.kinds)]


@dataclass(frozen=True, slots=True)
class LaboratoryProgress:
    """How many tokens of all contexts are decoded."""

    what: str
    n_done: int
    n_total: int
    n_before: int = 0
    """Of `n_done`, what earlier runs did."""

    def left_s(self, elapsed_s: float) -> float | None:
        """Seconds that the rest takes at the pace of this run; None before there is a pace."""
        n_here = self.n_done - self.n_before
        return elapsed_s / n_here * (self.n_total - self.n_done) if n_here else None


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell, such as a kind that was left out and why."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportChanged:
    """What there is by now; intervals come with the last one."""

    report: Report


@dataclass(frozen=True, slots=True)
class LaboratoryFinished:
    """The report with all intervals, of all that was measured; the last event."""

    report: Report
    is_complete: bool
    """Whether nothing was stopped."""


LaboratoryEvent = LaboratoryProgress | Note | ReportChanged | LaboratoryFinished


@dataclass(slots=True)
class Laboratory:
    """One measurement; `run` is called once.

    Args:
        opener: The loaded model.
        plan: What to measure.
        documents: Texts and questions, as tokens.
        report: An earlier report of the same subject to go on with, or an empty one.
        refusal: Says why a kind cannot be used with this model; None where it can.
        rows: What earlier runs scored.
        rows_path: Where rows are kept after each text; the file is of no use once a complete
            report is written.
        notes: What is told first.
    """

    opener: KindOpener
    plan: LaboratoryPlan
    documents: Sequence[Document]
    report: Report
    refusal: Callable[[KVTypes], str | None] = lambda _: None
    rows: dict[RowKey, Rows] = field(default_factory=dict)
    rows_path: Path | None = None
    notes: tuple[str, ...] = ()
    _refused: set[KVTypes] = field(default_factory=set)
    _costs: dict[KVTypes, Cost] = field(default_factory=dict)
    _opened: list[Contestant] = field(default_factory=list)
    _is_stopped: bool = False
    _has_told_of_rows: bool = False
    _n_done: int = 0
    _n_before: int = 0
    _watch: Stopwatch = field(default_factory=Stopwatch)

    def stop(self) -> None:
        """End after the batch that is computed now, from any thread; the report comes at once."""
        self._is_stopped = True
        for each in tuple(self._opened):
            each.opened.backend.abort()

    def close(self) -> None:
        """Free the model."""
        self.opener.close()

    def run(self) -> Iterator[LaboratoryEvent]:
        """Measure; `LaboratoryFinished` comes last, whether it was stopped or not.

        Raises:
            QualityError: the reference cannot be measured.
            EngineError: the backend failed.
        """
        yield from map(Note, self.notes)
        rows = self.report.measurements
        self._costs = {each.kind: each.cost for each in rows if each.cost is not None}
        self._n_done = self._n_before = self._n_known()
        try:
            with ThreadPoolExecutor(max_workers=self.report.subject.n_threads) as pool:
                yield from self._score_all(pool)
            if self.plan.takes_times:
                yield from self._time_all()
        except DecodeAborted:
            self._is_stopped = True
        yield LaboratoryFinished(self._summary(n_draws=N_DRAWS), is_complete=not self._is_stopped)

    def _check_is_wanted(self) -> None:
        if self._is_stopped:
            raise DecodeAborted("stopped")

    # --- contexts ---

    def _open_group(
        self, wanted: Sequence[tuple[Role, KVTypes]], shape: BatchShape, n_least: int
    ) -> Generator[Note, None, None]:
        """Open the first contexts that memory holds side by side: at least `n_least`, and one more.

        A kind that is refused where memory holds others is left out.
        """
        free = psutil.virtual_memory().available
        budget, used = self.plan.memory_bytes or round(MEMORY_SHARE * free), 0
        for role, kind in wanted:
            has_enough = len(self._opened) > n_least
            if has_enough and used >= budget:
                return
            self._check_is_wanted()
            try:
                found = self.opener.open(kind, replace(shape, is_control=role == "control"))
            except ModelLoadError as error:
                if role != "candidate":
                    raise
                if has_enough:
                    return  # memory may have run out: it comes first in the next group
                yield self._left_out(kind, error)
                continue
            self._opened.append(Contestant(kind, role, found, found.backend.open()))
            logits = shape.n_rows * self.opener.vocabulary.n_tokens * FLOAT_BYTES
            used += found.backend.kv_bytes + found.compute_bytes + logits

    def _close(self) -> None:
        while self._opened:
            self._opened.pop().opened.backend.close()

    def _left_out(self, kind: KVTypes, why: object) -> Note:
        self._refused.add(kind)
        return Note(f"{kind} is left out: {why}")

    # --- scoring ---

    def _score_all(self, pool: Executor) -> Iterator[LaboratoryEvent]:
        reference, *others = self.plan.contexts
        if why := self.refusal(self.plan.reference):
            raise QualityError(f"the reference {self.plan.reference} cannot be used: {why}")
        yield from (self._left_out(e, why) for e in self.plan.kinds if (why := self.refusal(e)))
        while wanted := [each for each in others if not self._is_done(*each)]:
            has_control = wanted[0][0] == "control"
            try:
                shape = self._shape(1 + len(wanted))
                yield from self._open_group([reference, *wanted], shape, 1 + has_control)
                for index in range(len(self.documents)):
                    yield from self._score_document(index, pool)
            finally:
                self._close()

    def _shape(self, n_wanted: int) -> BatchShape:
        """Batches to score with; contexts that decode at once share the threads."""
        subject = self.report.subject
        n_threads = subject.n_threads
        if self.opener.is_concurrent:
            n_threads = max(1, n_threads // n_wanted)
        return BatchShape(subject.n_ctx, subject.n_chunk, subject.n_chunk, n_threads)

    def _is_done(self, role: Role, kind: KVTypes) -> bool:
        """Whether a context is refused, or nothing is left for it to score."""
        return self._is_refused(role, kind) or all(
            self._has_rows(role, kind, index) for index in range(len(self.documents))
        )

    def _is_refused(self, role: Role, kind: KVTypes) -> bool:
        return role == "candidate" and kind in self._refused

    def _has_rows(self, role: Role, kind: KVTypes, index: int) -> bool:
        """Whether a document is scored to its end: its rows are there, or the figures of all."""
        earlier = self._earlier(role, kind)
        is_known = earlier is not None and earlier.is_complete
        return is_known or self._is_whole(RowKey(role, kind, index))

    def _is_whole(self, key: RowKey) -> bool:
        return len(self.rows.get(key, ())) >= self.documents[key.document].n_rows

    def _earlier(self, role: Role, kind: KVTypes) -> Measurement | None:
        rows = self.report.measurements
        return next((each for each in rows if (each.role, each.kind) == (role, kind)), None)

    def _score_document(self, index: int, pool: Executor) -> Iterator[LaboratoryEvent]:
        """The rows of one document, of those who lack them; who fails is left out."""
        while True:
            reference, *others = self._opened
            lacking = [
                each
                for each in others
                if not self._is_refused(each.role, each.kind)
                and not self._has_rows(each.role, each.kind, index)
            ]
            if not lacking:
                return
            try:
                yield from self._score_with([reference, *lacking], index, pool)
            except ContestantError as error:
                yield self._left_out(error.kind, error)
                continue
            yield from self._keep()
            return

    def _score_with(
        self, contestants: Sequence[Contestant], index: int, pool: Executor
    ) -> Iterator[LaboratoryEvent]:
        """Score a document; what a stop leaves of it counts in this run's report."""
        document, n_chunk = self.documents[index], self.report.subject.n_chunk
        keys = [RowKey(each.role, each.kind, index) for each in contestants]
        n_lacking = sum(not self._has_rows(key.role, key.kind, index) for key in keys)
        found: list[list[Rows]] = [[] for _ in keys]
        turn: Turn = FREE if self.opener.is_concurrent else Lock()
        self._check_is_wanted()
        try:
            for chunk in score(document, contestants, n_chunk=n_chunk, pool=pool, turn=turn):
                for rows, more in zip(found, chunk.rows, strict=False):  # none of what is only read
                    rows.append(more)
                self._n_done += n_lacking * chunk.n_tokens
                yield self._progress(document.name)
                self._check_is_wanted()
        finally:
            for key, rows in zip(keys, found, strict=True):
                if rows and not self._is_whole(key):
                    self.rows[key] = np.concatenate(rows)

    def _keep(self) -> Iterator[LaboratoryEvent]:
        """Write the rows of whole documents; the first time that they cannot be is told."""
        if self.rows_path is not None:
            whole = {key: rows for key, rows in self.rows.items() if self._is_whole(key)}
            try:
                write_rows(self.rows_path, self.report.subject.digest, whole)
            except QualityError as error:
                if not self._has_told_of_rows:
                    self._has_told_of_rows = True
                    yield Note(str(error))
        yield ReportChanged(self._summary(n_draws=0))

    # --- how far it is ---

    def _progress(self, what: str) -> LaboratoryProgress:
        n_texts = sum(len(each.tokens) for each in self.documents)
        contexts = [each for each in self.plan.contexts if not self._is_refused(*each)]
        n_total = len(contexts) * n_texts + len({kind for _, kind in contexts}) * self._n_timed
        return LaboratoryProgress(what, self._n_done, max(self._n_done, n_total), self._n_before)

    @property
    def _n_timed(self) -> int:
        """Tokens that each kind decodes while it is timed."""
        n_ctx = self.report.subject.n_ctx
        return n_timed(n_ctx) if self.plan.takes_times and n_ctx >= LEAST_CTX else 0

    def _n_known(self) -> int:
        """Tokens that earlier runs decoded."""
        scored = (
            len(document.tokens)
            for role, kind in self.plan.contexts
            for index, document in enumerate(self.documents)
            if self._has_rows(role, kind, index)
        )
        return sum(scored) + len(self._costs) * self._n_timed

    # --- timing ---

    def _time_all(self) -> Iterator[LaboratoryEvent]:
        n_ctx = self.report.subject.n_ctx
        if n_ctx < LEAST_CTX:
            yield Note(f"speeds are not measured in a context below {LEAST_CTX} tokens")
            return
        reference, _, *others = self.plan.contexts
        tokens = max((each.tokens for each in self.documents), key=len)
        while wanted := [each for each in (reference, *others) if self._lacks_cost(*each)]:
            try:
                yield from self._open_group(wanted, shape_of(n_ctx), 0)
                for done in time_kinds(self._opened, tokens, n_ctx):
                    self._check_is_wanted()
                    if isinstance(done, int):
                        self._n_done += done
                        yield self._progress("speeds")
                    else:
                        self._costs.update([done])
            finally:
                self._close()
            yield ReportChanged(self._summary(n_draws=0))

    def _lacks_cost(self, role: Role, kind: KVTypes) -> bool:
        return kind not in self._costs and not self._is_refused(role, kind)

    # --- the report ---

    def _summary(self, *, n_draws: int) -> Report:
        wanted = [*self.plan.contexts, *((e.role, e.kind) for e in self.report.measurements)]
        rows = (self._measurement(role, kind, n_draws) for role, kind in dict.fromkeys(wanted))
        return replace(
            self.report,
            measurements=tuple(row for row in rows if row is not None),
            elapsed_s=self.report.elapsed_s + self._watch.total(),
        )

    def _measurement(self, role: Role, kind: KVTypes, n_draws: int) -> Measurement | None:
        """What is known of a kind: of an earlier report, or of its rows; None without any."""
        earlier, cost = self._earlier(role, kind), self._costs.get(kind)
        if earlier is not None and earlier.is_complete:
            return replace(earlier, cost=cost)
        keys = {index: RowKey(role, kind, index) for index in range(len(self.documents))}
        found = {index: self.rows[key] for index, key in keys.items() if key in self.rows}
        return measurement_of(kind, role, self.documents, found, cost=cost, n_draws=n_draws)
