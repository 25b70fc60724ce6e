"""What servers say of the same texts: the first is the reference, each other one is compared.

Which cache a server has, it does not tell; two that were started alike but for their caches show
what a type costs there.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from engine.backends.server.facts import Program, ServerFacts, ask_facts
from engine.backends.server.http import Http, Limits
from engine.backends.server.logprobs import (
    LIKELIEST,
    ServedModel,
    ToldRow,
    compared_rows,
    told_rows,
)
from engine.clock import Stopwatch
from engine.configuration import KVTypes
from engine.errors import EngineError
from engine.quality.laboratory import Finished, LaboratoryEvent, Note, Progress, ReportChanged
from engine.quality.questions import questions
from engine.quality.records import SERVERS, QualityError, Report, Role, Subject, check_same_subject
from engine.quality.row_store import RowKey, RowStore
from engine.quality.summary import N_DRAWS, empty_report, measurement_of
from engine.quality.texts import Document, Text, clean_name, digest_of, documents_of

N_STEP = 16
"""Rows between two looks at whether to stop."""
SERVED_CTX = 2048
"""Longest text where nothing else is said."""
MOST_CTX: Mapping[Program, int] = {"vLLM": 5000, "SGLang": 800}
"""Longest text that one answer of less than `MAX_BODY` bytes tells of: a row is 1.5 kB at vLLM and
9 kB at SGLang."""
SPARE = 8
"""Tokens of a context that texts leave free."""
IDENTITY_BYTES = 16


@dataclass(frozen=True, slots=True)
class ServedTexts:
    """What is read to the servers."""

    texts: tuple[Text, ...]
    haystack: tuple[Text, ...]
    """What needles are hidden in; without any nothing is asked."""
    n_ctx: int | None
    """Longest text without a break; None is `SERVED_CTX`, or what a server holds."""
    n_most: int | None
    """Tokens after which texts are left out; None takes all."""


class Servers:
    """The servers of a measurement, open until `close`."""

    def __init__(self, urls: Sequence[str], model: str) -> None:
        """Ask each what it is; an empty `model` is the first of each.

        Raises:
            ServerError: one cannot be reached, has no such model, or tells no likelihoods.
        """
        self._open = ExitStack()
        self.facts: list[ServerFacts] = []
        self.models: list[ServedModel] = []
        self.names: list[str] = []
        try:
            for url in urls:
                http = Http(url, Limits())
                self._open.callback(http.close)
                self.facts.append(ask_facts(http, model or None))
                self.models.append(ServedModel(http, self.facts[-1]))
                self.names.append(http.name)
        except EngineError:
            self.close()
            raise

    def close(self) -> None:
        """End every connection."""
        self._open.close()

    def documents(self, asked: ServedTexts) -> tuple[Document, ...]:
        """The texts as tokens, which must be the same at all servers.

        Raises:
            QualityError: they are not, or no text is long enough.
            ServerError: a server does not tell.
        """
        known = [each.n_ctx - SPARE for each in self.facts if each.n_ctx]
        known += [MOST_CTX[each.program] for each in self.facts if each.program in MOST_CTX]
        n_ctx = min([asked.n_ctx or SERVED_CTX, *known])
        found = [self._documents_at(model, asked, n_ctx) for model in self.models]
        for name, documents in zip(self.names[1:], found[1:], strict=True):
            if digest_of(documents) != digest_of(found[0]):
                raise QualityError(
                    f"{name} makes other tokens of the same texts than {self.names[0]}: they can "
                    "only be compared with one vocabulary, so name two servers of one model"
                )
        return found[0]

    def _documents_at(
        self, model: ServedModel, asked: ServedTexts, n_ctx: int
    ) -> tuple[Document, ...]:
        documents = documents_of(asked.texts, model, n_ctx, asked.n_most)
        return documents + (questions(model, asked.haystack, n_ctx) if asked.haystack else ())

    def subject(self, documents: Sequence[Document]) -> Subject:
        """What the measurement is of."""
        first = self.facts[0]
        kinds = _kinds(len(self.facts))
        named = zip(kinds, self.names, self.facts, strict=True)
        n_told = min(LIKELIEST[each.program] for each in self.facts)
        return Subject(
            model=clean_name(Path(first.model).name),
            model_identity=hashlib.blake2b(
                repr((first.file_type, first.n_vocab)).encode(), digest_size=IDENTITY_BYTES
            ).hexdigest(),
            texts_digest=digest_of(documents),
            build=clean_name(f"{first.program} {first.version}".strip()),
            device=clean_name(self.names[0]),
            n_threads=0,
            n_ctx=max(len(each.tokens) for each in documents),
            n_chunk=1,
            reference=kinds[0],
            settings={
                "backend": SERVERS,
                "KL of the likeliest": f"{n_told} tokens, others as one",
                **{
                    str(kind): clean_name(f"{name} ({facts.program} {facts.version})")
                    for kind, name, facts in named
                },
            },
        )


@dataclass(slots=True)
class ServerLaboratory:
    """One measurement at servers; `run` is called once."""

    servers: Servers
    documents: Sequence[Document]
    report: Report
    store: RowStore
    _is_stopped: bool = False
    _n_done: int = 0
    _n_before: int = 0
    _watch: Stopwatch = field(default_factory=Stopwatch)

    def stop(self) -> None:
        """End after the rows that are asked for now, from any thread."""
        self._is_stopped = True

    def close(self) -> None:
        """End every connection."""
        self.servers.close()

    def run(self) -> Iterator[LaboratoryEvent]:
        """Measure; `Finished` comes last, whether it was stopped or not.

        Raises:
            EngineError: a server failed; what came before is kept.
        """
        if self.report.measurements and all(row.is_complete for row in self.report.measurements):
            yield Finished(self.report, is_complete=True)
            return
        self._n_done = self._n_before = sum(
            each.first + self._n_kept(index)
            for index, each in enumerate(self.documents)
            if self._n_kept(index)
        )
        with ThreadPoolExecutor(max_workers=len(self.servers.models)) as pool:
            for index in range(len(self.documents)):
                try:
                    yield from self._score(index, pool)
                except EngineError:
                    yield from self._keep()
                    raise
                yield from self._keep()
                if self._is_stopped:
                    break
        yield Finished(self._summary(N_DRAWS), is_complete=not self._is_stopped)

    def _score(self, index: int, pool: ThreadPoolExecutor) -> Iterator[LaboratoryEvent]:
        """The rows of a document that are missing; all servers are asked at once."""
        document, at = self.documents[index], self._n_kept(index)
        if at >= document.n_rows:
            return
        self._n_done += 0 if at else document.first
        told = [each.rows(document.tokens, document.first + at) for each in self.servers.models]
        while at < document.n_rows and not self._is_stopped:
            steps = list(pool.map(_step, told))
            for number, rows in enumerate(steps):
                kept = told_rows(rows) if not number else compared_rows(steps[0], rows)
                self.store.put(self._key(number, index), at, kept)
            at += len(steps[0])
            self._n_done += len(steps[0])
            n_all = sum(len(each.tokens) for each in self.documents)
            yield Progress(document.name, self._n_done, n_all, self._n_before)

    def _n_kept(self, index: int) -> int:
        """Rows of a document that all servers have told of."""
        return min(
            self.store.n_rows(self._key(number, index))
            for number in range(len(self.servers.models))
        )

    def _key(self, number: int, index: int) -> RowKey:
        role: Role = "candidate" if number else "reference"
        return RowKey(role, _kinds(number + 1)[number], index)

    def _keep(self) -> Iterator[LaboratoryEvent]:
        try:
            self.store.write()
        except QualityError as error:
            yield Note(str(error))
        yield ReportChanged(self._summary(0))

    def _summary(self, n_draws: int) -> Report:
        found = []
        for number in range(len(self.servers.models)):
            keys = [self._key(number, index) for index in range(len(self.documents))]
            known = {
                index: rows
                for index, key in enumerate(keys)
                if (rows := self.store.get(key)) is not None
            }
            row = measurement_of(
                keys[0].kind, keys[0].role, self.documents, known, cost=None, n_draws=n_draws
            )
            found += [row] if row else []
        elapsed_s = self.report.elapsed_s + self._watch.total()
        return replace(self.report, measurements=tuple(found), elapsed_s=elapsed_s)


def open_server_laboratory(
    servers: Servers, asked: ServedTexts, earlier: Report | None
) -> ServerLaboratory:
    """A measurement that is ready to run; closing it ends the connections.

    One that was stopped begins anew: a server may have been started with another cache since, and
    does not say so.

    Args:
        servers: Who is compared; closed where that cannot be.
        asked: What is read to them.
        earlier: A report that is shown again where it is complete.

    Raises:
        QualityError: no text is long enough, vocabularies differ, or the earlier report is of
            something else.
        ServerError: a server does not tell.
    """
    try:
        documents = servers.documents(asked)
        subject = servers.subject(documents)
        report = empty_report(subject, documents)
        if earlier is not None:
            check_same_subject(earlier.subject, subject)
            is_complete = all(row.is_complete for row in earlier.measurements)
            report = earlier if earlier.measurements and is_complete else report
        store = RowStore(None, subject.digest)
    except EngineError:
        servers.close()
        raise
    return ServerLaboratory(servers, documents, report, store)


def _kinds(n: int) -> list[KVTypes]:
    """`server_1`, `server_2` and so on: what a report calls them."""
    return [KVTypes(f"server_{number}", f"server_{number}") for number in range(1, n + 1)]


def _step(rows: Iterator[ToldRow]) -> list[ToldRow]:
    return list(islice(rows, N_STEP))
