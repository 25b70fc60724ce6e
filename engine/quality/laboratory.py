"""One measurement from texts to the report, as a line of events.

All contexts that memory holds go through the texts side by side, so that the reference is computed
once for them; with more kinds than that, it is computed once for each group.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock

import psutil

from engine.backends.base import Backend
from engine.clock import Pacer, Stopwatch
from engine.configuration import KVTypes
from engine.errors import DecodeAborted, ModelLoadError
from engine.quality.cost import LEAST_CTX, n_timed, shape_of, timed
from engine.quality.records import Cost, Measurement, QualityError, Report, Role
from engine.quality.row_store import RowKey, RowStore
from engine.quality.scoring import (
    FREE,
    BatchShape,
    Contestant,
    ContestantError,
    KindOpener,
    OpenedKind,
    Turn,
    score,
)
from engine.quality.summary import N_DRAWS, measurement_of
from engine.quality.texts import Document

N_CHUNK = 64
"""Tokens of a batch: its logits lie in memory once for each context."""
MEMORY_SHARE = 0.6
"""Of the free memory that contexts may take."""
FLOAT_BYTES = 4
KEEP_EVERY_S = 5.0
"""What a killed process loses at most; a stopped one loses nothing."""
MOST_KEEPING = 0.05
"""Share of the time that writing rows may take where there are very many."""
DEPTH_OF_TWICE = 256
"""Tokens in the cache at which one more takes about twice as long as at the start: the time left is
told by that. Attention over quantised values takes that long on a processor, others less."""
F16 = KVTypes("f16", "f16")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how."""

    kinds: tuple[KVTypes, ...]
    reference: KVTypes = F16
    n_chunk: int = N_CHUNK
    takes_times: bool = True
    memory_bytes: int | None = None
    """What contexts may take; None is `MEMORY_SHARE` of what is free."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is; the unit is the work of a token at the start of a context."""

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
class Finished:
    """The report with all intervals, of all that was measured; the last event."""

    report: Report
    is_complete: bool
    """Whether nothing was stopped."""


LaboratoryEvent = Progress | Note | ReportChanged | Finished


@dataclass(slots=True)
class _Opened:
    """A contestant with what has to be closed."""

    contestant: Contestant
    backend: Backend


@dataclass(slots=True)
class Laboratory:
    """One measurement; `run` is called once.

    Args:
        opener: The loaded model.
        plan: What to measure.
        documents: Texts and questions, as tokens.
        report: An earlier report of the same subject to go on with, or an empty one.
        refusal: Says why a kind cannot be used with this model; None where it can.
        store: Where rows are kept behind each chunk; its file is of no use once a complete report
            is written.
    """

    opener: KindOpener
    plan: Plan
    documents: Sequence[Document]
    report: Report
    refusal: Callable[[KVTypes], str | None] = lambda _: None
    store: RowStore = field(default_factory=lambda: RowStore(None, ""))
    notes: tuple[str, ...] = ()
    _refused: set[KVTypes] = field(default_factory=set)
    _costs: dict[tuple[Role, KVTypes], Cost] = field(default_factory=dict)
    _live: list[Backend] = field(default_factory=list)
    _is_stopped: bool = False
    _has_told_of_rows: bool = False
    _n_done: int = 0
    _n_before: int = 0
    _watch: Stopwatch = field(default_factory=Stopwatch)
    _pacer: Pacer = field(default_factory=lambda: Pacer(KEEP_EVERY_S, max_share=MOST_KEEPING))

    def stop(self) -> None:
        """End after the batch that is computed now, from any thread; the report comes at once."""
        self._is_stopped = True
        for backend in tuple(self._live):
            backend.abort()

    def close(self) -> None:
        """Free the model."""
        self.opener.close()

    def run(self) -> Iterator[LaboratoryEvent]:
        """Measure; `Finished` comes last, whether it was stopped or not.

        Raises:
            QualityError: the reference cannot be measured.
            EngineError: the backend failed.
        """
        yield from map(Note, self.notes)
        for each in self.report.measurements:
            if each.cost is not None:
                self._costs[each.role, each.kind] = each.cost
        self._n_done = self._n_before = self._n_kept()
        with self._pacer.work():
            pass  # the first rows are due after a while
        try:
            with ThreadPoolExecutor(max_workers=self.report.subject.n_threads) as pool:
                yield from self._score_all(pool)
            if self.plan.takes_times and not self._is_stopped:
                yield from self._time_all()
        except DecodeAborted:
            self._is_stopped = True
        if self._is_stopped:
            yield from self._keep_rows()
        yield Finished(self._summary(n_draws=N_DRAWS), is_complete=not self._is_stopped)

    # --- scoring ---

    def _score_all(self, pool: Executor) -> Iterator[LaboratoryEvent]:
        yield from self._leave_out_refused()
        waiting = [kind for kind in self.plan.kinds if self._lacks("candidate", kind)]
        while not self._is_stopped:
            waiting = [kind for kind in waiting if kind not in self._refused]
            if not waiting and not self._lacks("control", self.plan.reference):
                return
            opened, notes = self._open_group(waiting)
            yield from notes
            try:
                for index in range(len(self.documents)):
                    yield from self._score_document(index, opened, pool)
            finally:
                self._close([each.backend for each in opened])
            measured = {each.contestant.kind for each in opened[1:]}
            waiting = [kind for kind in waiting if kind not in measured]

    def _leave_out_refused(self) -> Iterator[Note]:
        why = self.refusal(self.plan.reference)
        if why is not None:
            raise QualityError(f"the reference {self.plan.reference} cannot be used: {why}")
        for kind in self.plan.kinds:
            why = self.refusal(kind)
            if why is not None:
                self._refused.add(kind)
                yield Note(f"{kind} is left out: {why}")

    def _lacks(self, role: Role, kind: KVTypes) -> bool:
        """Whether rows of a document are missing, and no complete figures are there."""
        if self._is_refused(role, kind) or self._has_figures(role, kind):
            return False
        return not all(self._has_rows(role, kind, index) for index in range(len(self.documents)))

    def _is_refused(self, role: Role, kind: KVTypes) -> bool:
        return role == "candidate" and kind in self._refused

    def _has_figures(self, role: Role, kind: KVTypes) -> bool:
        found = self._earlier(role, kind)
        return found is not None and found.is_complete

    def _has_rows(self, role: Role, kind: KVTypes, index: int) -> bool:
        """Whether all rows of a document are there."""
        return self.store.n_rows(RowKey(role, kind, index)) >= self.documents[index].n_rows

    def _earlier(self, role: Role, kind: KVTypes) -> Measurement | None:
        rows = self.report.measurements
        return next((each for each in rows if (each.role, each.kind) == (role, kind)), None)

    def _open_group(self, waiting: Sequence[KVTypes]) -> tuple[list[_Opened], list[Note]]:
        """The reference, the control where it is not done, and as many kinds as memory holds."""
        budget = self._budget()
        reference = self.plan.reference
        n_threads = self.report.subject.n_threads
        opened: list[_Opened] = []
        notes: list[Note] = []
        wanted: list[tuple[Role, KVTypes]] = [("reference", reference)]
        if self._lacks("control", reference):
            wanted.append(("control", reference))
        n_first = len(wanted)
        wanted += [("candidate", kind) for kind in waiting]
        if self.opener.is_concurrent:
            n_threads = max(1, n_threads // len(wanted))
        used = 0
        try:
            for role, kind in wanted:
                if len(opened) > n_first and used >= budget:
                    break
                try:
                    one, nbytes = self._open(role, kind, n_threads)
                except ModelLoadError as error:
                    if role != "candidate":
                        raise
                    if len(opened) > n_first:
                        break  # memory may have run out: it comes first in the next group
                    self._refused.add(kind)
                    notes.append(Note(f"{kind} is left out: {error}"))
                    continue
                opened.append(one)
                used += nbytes
        except BaseException:
            self._close([each.backend for each in opened])
            raise
        return opened, notes

    def _open(self, role: Role, kind: KVTypes, n_threads: int) -> tuple[_Opened, int]:
        n_chunk = self.report.subject.n_chunk
        n_ctx = self.report.subject.n_ctx
        shape = BatchShape(n_ctx, n_chunk, n_chunk, n_threads, is_control=role == "control")
        found = self.opener.open(kind, shape)
        self._live.append(found.backend)
        logits = n_chunk * self.opener.vocabulary.n_tokens * FLOAT_BYTES
        nbytes = found.backend.kv_bytes + found.compute_bytes + logits
        line = found.backend.open()
        n_step = min(found.n_step or n_chunk, n_chunk)
        return _Opened(Contestant(kind, role, line, n_step), found.backend), nbytes

    def _close(self, backends: Sequence[Backend]) -> None:
        for backend in backends:
            self._live.remove(backend)
            backend.close()

    def _score_document(
        self, index: int, opened: Sequence[_Opened], pool: Executor
    ) -> Iterator[LaboratoryEvent]:
        """The rows of one document, of those who lack them; who fails is left out."""
        while True:
            first, *others = (each.contestant for each in opened)
            lacking = [
                each
                for each in others
                if not self._is_refused(each.role, each.kind)
                and not self._has_rows(each.role, each.kind, index)
            ]
            if not lacking and (len(others) or self._has_rows(first.role, first.kind, index)):
                return
            try:
                yield from self._score_with([first, *lacking], index, pool)
            except ContestantError as error:
                self._refused.add(error.kind)
                yield Note(f"{error.kind} is left out: {error}")
                continue
            yield from self._keep_all()
            return

    def _score_with(
        self, contestants: Sequence[Contestant], index: int, pool: Executor
    ) -> Iterator[LaboratoryEvent]:
        """Score a document from the first chunk on that somebody has no rows of."""
        document, n_chunk = self.documents[index], self.report.subject.n_chunk
        keys = [RowKey(each.role, each.kind, index) for each in contestants]
        n_kept = min(map(self.store.n_rows, keys)) // n_chunk * n_chunk
        n_read = document.first + n_kept if n_kept else 0
        n_lacking = sum(
            not self._has_figures(key.role, key.kind)
            and not self._has_rows(key.role, key.kind, index)
            for key in keys
        )
        turn: Turn = FREE if self.opener.is_concurrent else Lock()
        self._check_is_wanted()
        for chunk in score(
            document, contestants, n_chunk=n_chunk, pool=pool, n_kept=n_kept, turn=turn
        ):
            for key, rows in zip(keys, chunk.rows, strict=False):  # none where it was only read
                self.store.put(key, chunk.start - document.first, rows)
            if chunk.start >= n_read:
                self._n_done += n_lacking * _work(chunk.start, chunk.start + chunk.n_tokens)
            yield self._progress(document.name)
            if self._pacer.is_due():
                with self._pacer.work():
                    yield from self._keep_all()
            self._check_is_wanted()

    def _check_is_wanted(self) -> None:
        if self._is_stopped:
            raise DecodeAborted("stopped")

    # --- how far it is ---

    def _progress(self, what: str) -> Progress:
        n_total = self._n_texts() + self._n_speeds()
        return Progress(what, self._n_done, max(self._n_done, n_total), self._n_before)

    def _n_texts(self) -> int:
        """The work of all texts and questions in all contexts."""
        n_contexts = sum(not self._is_refused(role, kind) for role, kind in self._wanted())
        return n_contexts * sum(_work(0, len(each.tokens)) for each in self.documents)

    def _n_speeds(self) -> int:
        """The work of timing all kinds."""
        n_ctx = self.report.subject.n_ctx
        if not self.plan.takes_times or n_ctx < LEAST_CTX:
            return 0
        kinds = {kind for _, kind in self._wanted()} - self._refused
        return len(kinds) * _work(0, n_timed(n_ctx))

    def _n_kept(self) -> int:
        """The work that earlier runs did."""
        done = 0
        for role, kind in self._wanted():
            is_known = self._has_figures(role, kind)
            for index, each in enumerate(self.documents):
                n_rows = each.n_rows if is_known else self.store.n_rows(RowKey(role, kind, index))
                done += _work(0, each.first + n_rows) if n_rows else 0
        n_timed_before = len({kind for _, kind in self._costs})
        return done + (n_timed_before * _work(0, n_timed(self.report.subject.n_ctx)))

    def _wanted(self) -> list[tuple[Role, KVTypes]]:
        reference = self.plan.reference
        first: list[tuple[Role, KVTypes]] = [("reference", reference), ("control", reference)]
        return [*first, *(("candidate", kind) for kind in self.plan.kinds)]

    # --- what is kept ---

    def _keep_all(self) -> Iterator[LaboratoryEvent]:
        yield from self._keep_rows()
        yield ReportChanged(self._summary(n_draws=0))

    def _keep_rows(self) -> Iterator[Note]:
        """Write the rows; the first time that they cannot be written is told."""
        try:
            self.store.write()
        except QualityError as error:
            if not self._has_told_of_rows:
                self._has_told_of_rows = True
                yield Note(str(error))

    # --- timing ---

    def _time_all(self) -> Iterator[LaboratoryEvent]:
        n_ctx = self.report.subject.n_ctx
        if n_ctx < LEAST_CTX:
            yield Note(f"speeds are not measured in a context below {LEAST_CTX} tokens")
            return
        kinds = [self.plan.reference, *self.plan.kinds]
        missing = [
            kind
            for kind in dict.fromkeys(kinds)
            if kind not in self._refused and self._cost_of(kind) is None
        ]
        while missing:
            yield self._progress("speeds")
            yield from self._time_group(missing)
            missing = [kind for kind in missing if self._cost_of(kind) is None]
            yield ReportChanged(self._summary(n_draws=0))

    def _time_group(self, kinds: Sequence[KVTypes]) -> Iterator[Progress]:
        """Time as many kinds side by side as memory holds, at least one."""
        n_ctx = self.report.subject.n_ctx
        tokens = max((each.tokens for each in self.documents), key=len)
        budget, used = self._budget(), 0
        opened: list[tuple[KVTypes, OpenedKind]] = []
        try:
            for kind in kinds:
                if opened and used >= budget:
                    break
                try:
                    found = self.opener.open(kind, shape_of(n_ctx))
                except ModelLoadError:
                    if not opened:
                        raise
                    break  # memory may have run out: it comes first in the next group
                self._live.append(found.backend)
                opened.append((kind, found))
                used += found.backend.kv_bytes + found.compute_bytes
            pace = _work(0, n_timed(n_ctx)) / n_timed(n_ctx)
            for done in timed(opened, tokens, n_ctx):
                self._check_is_wanted()
                if isinstance(done, int):
                    self._n_done += round(done * pace)
                    yield self._progress("speeds")
                else:
                    self._keep_cost(*done)
        finally:
            self._close([each.backend for _, each in opened])

    def _budget(self) -> int:
        """Bytes that contexts may take."""
        free = psutil.virtual_memory().available
        return self.plan.memory_bytes or round(MEMORY_SHARE * free)

    def _cost_of(self, kind: KVTypes) -> Cost | None:
        roles: tuple[Role, ...] = ("candidate", "reference")
        return next((self._costs[r, kind] for r in roles if (r, kind) in self._costs), None)

    def _keep_cost(self, kind: KVTypes, cost: Cost) -> None:
        if kind == self.plan.reference:
            self._costs["reference", kind] = self._costs["control", kind] = cost
        if kind in self.plan.kinds:
            self._costs["candidate", kind] = cost

    # --- the report ---

    def _summary(self, *, n_draws: int) -> Report:
        wanted = self._wanted() + [(each.role, each.kind) for each in self.report.measurements]
        rows = (self._measurement(role, kind, n_draws) for role, kind in dict.fromkeys(wanted))
        return replace(
            self.report,
            measurements=tuple(row for row in rows if row is not None),
            elapsed_s=self.report.elapsed_s + self._watch.total(),
        )

    def _measurement(self, role: Role, kind: KVTypes, n_draws: int) -> Measurement | None:
        """What is known of a kind: of an earlier report, or of its rows; None without any."""
        earlier = self._earlier(role, kind)
        cost = self._costs.get((role, kind))
        if earlier is not None and earlier.is_complete:
            return replace(earlier, cost=cost)
        found = {
            index: rows
            for index in range(len(self.documents))
            if (rows := self.store.get(RowKey(role, kind, index))) is not None
        }
        return measurement_of(kind, role, self.documents, found, cost=cost, n_draws=n_draws)


def _work(start: int, stop: int) -> int:
    """The work of the tokens at some positions, the first of a context being 1."""
    mean = 1 + (start + stop) / 2 / DEPTH_OF_TWICE
    return round((stop - start) * mean)
