"""Documents decoded teacher-forced through several caches by turns.

The reference decodes a chunk, then each other context does and compares its rows while the logits
of the reference lie in memory; nothing of them is kept. Each row reads keys and
values out of the cache, as a reply's tokens do, so that it sees what a type of cache did to all
that came before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from engine.backends.base import Backend, Vocabulary
from engine.backends.base import Sequence as Line
from engine.configuration import Configuration, KVTypes
from engine.quality.metrics import Rows, compared_rows, own_rows, reference_rows
from engine.quality.records import QualityError, Role
from engine.quality.texts import Document


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How large a context and its batches are."""

    n_ctx: int
    n_batch: int
    """Tokens that are computed at once."""
    n_rows: int
    """Rows of logits of one batch."""
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
    document: Document, contestants: Sequence[Contestant], *, n_chunk: int
) -> Iterator[ScoredChunk]:
    """The rows of a document, chunk by chunk.

    Args:
        document: What is decoded, from an empty cache on.
        contestants: The reference, then whom to compare with it.
        n_chunk: Tokens of a batch.

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
        for each in contestants:
            for step in _steps(unscored, each.opened.n_step):
                each.line.prefill(step)
        yield ScoredChunk(len(unscored))
    for start in range(first, len(tokens) - 1, n_chunk):
        chunk = tokens[start : start + n_chunk]
        next_tokens = tokens[start + 1 : start + 1 + len(chunk)]
        yield ScoredChunk(len(chunk), tuple(_compare(contestants, chunk, next_tokens)))


def _compare(
    contestants: Sequence[Contestant], chunk: Sequence[int], next_tokens: Sequence[int]
) -> Iterator[Rows]:
    """The rows of a chunk, which the reference decodes in one step."""
    first, *others = contestants
    reference = reference_rows(first.line.verify(chunk).logits, next_tokens)
    yield own_rows(reference)
    for each in others:
        parts, start = [], 0
        try:
            for step in _steps(chunk, each.opened.n_step):
                logits = each.line.verify(step).logits
                parts.append(compared_rows(reference, logits, start))
                start += len(step)
        except QualityError as error:
            if each.role == "candidate":
                raise ContestantError(each.kind, f"{each.kind}: {error}") from error
            raise
        yield np.concatenate(parts)


def _steps(tokens: Sequence[int], n_step: int | None) -> list[Sequence[int]]:
    size = n_step or len(tokens)
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]
