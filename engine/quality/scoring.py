"""Documents decoded teacher-forced through several caches side by side.

Every context decodes a chunk in a thread of its own and compares its rows with the reference's
while the logits of that chunk lie in memory; nothing of them is kept. Each row reads keys and
values out of the cache, as a reply's tokens do, so that it sees what a type of cache did to all
that came before.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from engine.backends.base import Backend, Vocabulary
from engine.backends.base import Sequence as Line
from engine.configuration import Configuration, KVTypes
from engine.quality.metrics import ReferenceRows, Rows, compared_rows, own_rows, reference_rows
from engine.quality.records import QualityError, Role
from engine.quality.texts import Document

Turn = AbstractContextManager[object]
FREE: Turn = nullcontext()
"""Lets all contexts decode at once."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How large a context and its batches are."""

    n_ctx: int
    n_batch: int
    """Tokens that are computed at once."""
    n_rows: int
    """Rows of logits of one batch."""
    n_threads: int | None = None
    """Of a decode; None is as many as the model was opened with."""
    is_control: bool = False
    """Whether the reference's numbers are to be computed by other kernels than it takes."""

    def of(self, configuration: Configuration) -> Configuration:
        """A configuration for one sequence in a context of this shape."""
        return replace(
            configuration,
            n_slots=1,
            kv_unified=False,
            n_ctx=self.n_ctx,
            n_batch=self.n_batch,
            n_ubatch=self.n_batch,
        )


@dataclass(frozen=True, slots=True)
class OpenedKind:
    """A context with a kind of cache."""

    backend: Backend
    compute_bytes: int
    """Of the graph's buffers."""
    n_step: int | None = None
    """Most tokens of a decode; None is a whole batch."""


class KindOpener(Protocol):
    """One loaded model, of which contexts with different caches are opened side by side."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def is_concurrent(self) -> bool:
        """Whether contexts decode quicker at once, in a thread each, than one after the other."""
        ...

    def open(self, kind: KVTypes, shape: BatchShape) -> OpenedKind:
        """One more context; closing its backend frees it.

        Raises:
            ModelLoadError: the kind or the size is refused; the message says why.
        """
        ...

    def close(self) -> None:
        """Free the model and the contexts that are open."""
        ...


@dataclass(frozen=True, slots=True)
class Contestant:
    """A context in the comparison; the reference comes first."""

    kind: KVTypes
    role: Role
    opened: OpenedKind
    line: Line


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A batch that all contestants have decoded."""

    n_tokens: int
    rows: tuple[Rows, ...] = ()
    """One array for each contestant; none of tokens that are only read."""


class ContestantError(QualityError):
    """A candidate whose numbers cannot be compared."""

    def __init__(self, kind: KVTypes, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def score(
    document: Document,
    contestants: Sequence[Contestant],
    *,
    n_chunk: int,
    pool: Executor,
    turn: Turn = FREE,
) -> Iterator[ScoredChunk]:
    """The rows of a document, chunk by chunk.

    Args:
        document: What is decoded, from an empty cache on.
        contestants: The reference, then whom to compare with it.
        n_chunk: Tokens of a batch.
        pool: Threads; each takes a context at a time.
        turn: Held while a context decodes: a lock lets one decode at a time.

    Raises:
        ContestantError: a candidate's logits are no numbers.
        QualityError: those of the reference or the control are none.
        EngineError: as `Sequence.verify` does.
    """
    for each in contestants:
        each.line.crop(0)
    tokens, first = document.tokens, document.first
    for start in range(0, first, n_chunk):
        unscored = tokens[start : min(start + n_chunk, first)]
        _all([pool.submit(_read, each, unscored, turn) for each in contestants])
        yield ScoredChunk(len(unscored))
    for start in range(first, len(tokens) - 1, n_chunk):
        chunk = tokens[start : start + n_chunk]
        next_tokens = tokens[start + 1 : start + 1 + len(chunk)]
        rows = tuple(_compare(contestants, chunk, next_tokens, pool, turn))
        yield ScoredChunk(len(chunk), rows)


def _compare(
    contestants: Sequence[Contestant],
    chunk: Sequence[int],
    next_tokens: Sequence[int],
    pool: Executor,
    turn: Turn,
) -> list[Rows]:
    """The rows of a chunk; the reference is submitted first, so that who waits for it may."""
    first, *others = contestants
    reference = pool.submit(_reference, first, chunk, next_tokens, turn)
    compared = [pool.submit(_compared, reference, each, chunk, turn) for each in others]
    wait((reference,))
    wait(compared)
    found = [own_rows(reference.result())]
    for each, rows in zip(others, compared, strict=True):
        try:
            found.append(rows.result())
        except QualityError as error:
            if each.role == "candidate":
                raise ContestantError(each.kind, f"{each.kind}: {error}") from error
            raise
    return found


def _all(works: Sequence[Future[None]]) -> None:
    """Wait for all, so that no context is in use behind an error."""
    wait(works)
    for each in works:
        each.result()


def _read(contestant: Contestant, tokens: Sequence[int], turn: Turn) -> None:
    for step in _steps(tokens, contestant.opened.n_step):
        with turn:
            contestant.line.prefill(step)


def _reference(
    contestant: Contestant, chunk: Sequence[int], next_tokens: Sequence[int], turn: Turn
) -> ReferenceRows:
    """The rows of a whole chunk, which the reference decodes in one step."""
    with turn:
        logits = contestant.line.verify(chunk).logits
    return reference_rows(logits, next_tokens)


def _compared(
    reference: Future[ReferenceRows], contestant: Contestant, chunk: Sequence[int], turn: Turn
) -> Rows:
    parts = []
    start = 0
    for step in _steps(chunk, contestant.opened.n_step):
        with turn:
            logits = contestant.line.verify(step).logits
        parts.append(compared_rows(reference.result(), logits, start))
        start += len(step)
    return np.concatenate(parts)


def _steps(tokens: Sequence[int], n_step: int | None) -> list[Sequence[int]]:
    size = n_step or len(tokens)
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]
