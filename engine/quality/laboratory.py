"""One measurement from texts to the report, as a series of events.

Cache types are measured in groups of at most `N_GROUP`. In a group the reference decodes each text
first, then the others. Each group extends the report.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.clock import Stopwatch
from engine.configuration import KVTypes
from engine.errors import DecodeAborted, ModelLoadError
from engine.quality.cost import MIN_CTX, n_timed, shape_of, time_contexts
from engine.quality.metrics import Rows
from engine.quality.records import Cost, Measurement, QualityError, Report, Role
from engine.quality.scoring import (
    BatchShape,
    CandidateError,
    ContextOpener,
    OpenedContext,
    score,
)
from engine.quality.summary import measurement_of
from engine.quality.texts import Document

N_CHUNK = 64
"""Tokens of a batch, whose logits every open context holds in memory."""
N_GROUP = 4
"""Contexts that are open in addition to the reference."""
F16 = KVTypes("f16", "f16")
Context = tuple[Role, KVTypes]


@dataclass(frozen=True, slots=True)
class LaboratoryPlan:
    """Cache types to measure, and how."""

    kinds: tuple[KVTypes, ...]
    reference: KVTypes = F16
    n_chunk: int = N_CHUNK
    takes_times: bool = True

    @property
    def contexts(self) -> list[Context]:
        """Role and cache type of each context: the reference, the control, the candidates."""
        first: list[Context] = [("reference", self.reference)]
        return [*first, ("control", self.reference), *(("candidate", e) for e in self.kinds)]


@dataclass(frozen=True, slots=True)
class LaboratoryProgress:
    """Tokens decoded so far, summed over all contexts."""

    what: str
    n_done: int
    n_total: int


@dataclass(frozen=True, slots=True)
class Note:
    """A message for the user, such as why a cache type was left out."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportChanged:
    """The report so far."""

    report: Report


@dataclass(frozen=True, slots=True)
class LaboratoryFinished:
    """The final report; the last event."""

    report: Report
    is_complete: bool
    """Whether the measurement was not stopped."""


LaboratoryEvent = LaboratoryProgress | Note | ReportChanged | LaboratoryFinished


@dataclass(slots=True)
class Laboratory:
    """One measurement; `run` is called once.

    Args:
        opener: The loaded model.
        plan: Cache types to measure.
        documents: Tokens of the texts and questions.
        report: An earlier report of the same subject to continue, or an empty one.
        refusal: Returns why a cache type does not work with this model; None if it does.
        notes: Messages to emit first.
    """

    opener: ContextOpener
    plan: LaboratoryPlan
    documents: Sequence[Document]
    report: Report
    refusal: Callable[[KVTypes], str | None] = lambda _: None
    notes: tuple[str, ...] = ()
    _refused: set[KVTypes] = field(default_factory=set)
    _measured: dict[Context, Measurement] = field(default_factory=dict)
    _rows: dict[Context, dict[int, Rows]] = field(default_factory=dict)
    """Rows of the current group by document index."""
    _costs: dict[KVTypes, Cost] = field(default_factory=dict)
    _opened: list[OpenedContext] = field(default_factory=list)
    _is_stopped: bool = False
    _n_done: int = 0
    _watch: Stopwatch = field(default_factory=Stopwatch)

    def stop(self) -> None:
        """Abort the current batch, from any thread; `run` then yields the report."""
        self._is_stopped = True
        for each in tuple(self._opened):
            each.backend.abort()

    def close(self) -> None:
        """Free the model."""
        self.opener.close()

    def run(self) -> Iterator[LaboratoryEvent]:
        """Measure; the last event is `LaboratoryFinished`, also after a stop.

        Raises:
            QualityError: the reference cannot be measured.
            EngineError: the backend failed.
        """
        yield from map(Note, self.notes)
        rows = self.report.measurements
        self._measured = {(each.role, each.kind): each for each in rows}
        self._costs = {each.kind: each.cost for each in rows if each.cost is not None}
        known = [each for each in self.plan.contexts if self._is_measured(each)]
        self._n_done = self._n_tokens(known, self._costs)
        try:
            yield from self._score_all()
            if self.plan.takes_times:
                yield from self._time_all()
        except DecodeAborted:
            self._is_stopped = True
        yield LaboratoryFinished(self._summary(), is_complete=not self._is_stopped)

    def _check_is_wanted(self) -> None:
        if self._is_stopped:
            raise DecodeAborted("stopped")

    # --- contexts ---

    def _open_group(
        self, wanted: Sequence[Context], shape: BatchShape, n_min: int
    ) -> Iterator[Note]:
        """Open contexts until one fails.

        If more than `n_min` are open, memory may have run out: it is tried again in a later group.
        Otherwise its cache type is left out.
        """
        for role, kind in wanted:
            self._check_is_wanted()
            try:
                self._opened.append(self.opener.open(kind, shape, role))
            except ModelLoadError as error:
                if role != "candidate":
                    raise
                if len(self._opened) > n_min:
                    return
                yield self._left_out(kind, error)

    def _close(self) -> None:
        while self._opened:
            self._opened.pop().backend.close()

    def _left_out(self, kind: KVTypes, why: object) -> Note:
        self._refused.add(kind)
        return Note(f"{kind} is not measured: {why}")

    def _is_refused(self, context: Context) -> bool:
        role, kind = context
        return role == "candidate" and kind in self._refused

    def _is_measured(self, context: Context) -> bool:
        return context in self._measured and self._measured[context].is_complete

    # --- scoring ---

    def _score_all(self) -> Iterator[LaboratoryEvent]:
        reference, *others = self.plan.contexts
        if why := self.refusal(self.plan.reference):
            raise QualityError(f"the reference {self.plan.reference} cannot be used: {why}")
        yield from (self._left_out(e, why) for e in self.plan.kinds if (why := self.refusal(e)))
        subject = self.report.subject
        shape = BatchShape(subject.n_ctx, subject.n_chunk, subject.n_chunk)
        while wanted := [e for e in others if not (self._is_refused(e) or self._is_measured(e))]:
            has_control = wanted[0][0] == "control"
            try:
                group = [reference, *wanted[:N_GROUP]]
                yield from self._open_group(group, shape, 1 + has_control)
                for index in range(len(self.documents)):
                    yield from self._score_document(index)
            finally:
                self._close()
                self._settle()
            yield ReportChanged(self._summary())

    def _score_document(self, index: int) -> Iterator[LaboratoryEvent]:
        """Score one document; leave out cache types that fail, and score it again without them."""
        while True:
            listed = [each for each in self._opened if not self._is_refused((each.role, each.kind))]
            if len(listed) < 2:
                return
            try:
                yield from self._score_with(listed, index)
            except CandidateError as error:
                yield self._left_out(error.kind, error)
            else:
                return

    def _score_with(self, listed: Sequence[OpenedContext], index: int) -> Iterator[LaboratoryEvent]:
        """Score a document; after a stop its scored rows count too."""
        document, contexts = self.documents[index], [(each.role, each.kind) for each in listed]
        n_missing = sum(not self._is_measured(each) for each in contexts)
        found: list[list[Rows]] = [[] for _ in listed]
        self._check_is_wanted()
        try:
            for chunk in score(document, listed, n_chunk=self.report.subject.n_chunk):
                for rows, more in zip(found, chunk.rows, strict=False):  # unscored chunks have none
                    rows.append(more)
                self._n_done += n_missing * chunk.n_tokens
                yield self._progress(document.name)
                self._check_is_wanted()
        finally:
            for context, rows in zip(contexts, found, strict=True):
                if rows:
                    self._rows.setdefault(context, {})[index] = np.concatenate(rows)

    def _settle(self) -> None:
        """Compute the figures of the group's rows, then drop the rows."""
        for context, rows in self._rows.items():
            if self._is_refused(context) or self._is_measured(context):
                continue
            role, kind = context
            found = measurement_of(kind, role, self.documents, rows, cost=None)
            if found is not None:
                self._measured[context] = found
        self._rows.clear()

    # --- timing ---

    def _time_all(self) -> Iterator[LaboratoryEvent]:
        n_ctx = self.report.subject.n_ctx
        if n_ctx < MIN_CTX:
            yield Note(f"speeds are not measured in a context below {MIN_CTX} tokens")
            return
        reference, _, *others = self.plan.contexts
        tokens = max((each.tokens for each in self.documents), key=len)
        while wanted := [
            each
            for each in (reference, *others)
            if each[1] not in self._costs and not self._is_refused(each)
        ]:
            try:
                yield from self._open_group(wanted[: N_GROUP + 1], shape_of(n_ctx), 0)
                for done in time_contexts(self._opened, tokens, n_ctx):
                    self._check_is_wanted()
                    if isinstance(done, int):
                        self._n_done += done
                        yield self._progress("speeds")
                    else:
                        self._costs.update([done])
            finally:
                self._close()
            yield ReportChanged(self._summary())

    # --- progress and report ---

    def _progress(self, what: str) -> LaboratoryProgress:
        contexts = [each for each in self.plan.contexts if not self._is_refused(each)]
        n_total = self._n_tokens(contexts, {kind for _, kind in contexts})
        return LaboratoryProgress(what, self._n_done, max(self._n_done, n_total))

    def _n_tokens(self, scored: Sequence[Context], timed: Collection[KVTypes]) -> int:
        """Tokens to decode for scoring some contexts and timing some types."""
        n_ctx = self.report.subject.n_ctx
        n_each = n_timed(n_ctx) if self.plan.takes_times and n_ctx >= MIN_CTX else 0
        return len(scored) * sum(len(e.tokens) for e in self.documents) + len(timed) * n_each

    def _summary(self) -> Report:
        rows = (
            self._measured.get(each)
            for each in dict.fromkeys([*self.plan.contexts, *self._measured])
        )
        return replace(
            self.report,
            measurements=tuple(
                replace(row, cost=self._costs.get(row.kind)) for row in rows if row is not None
            ),
            elapsed_s=self.report.elapsed_s + self._watch.total(),
        )
