"""Decode documents teacher-forced through several caches, chunk by chunk.

The reference decodes a chunk; then each other context decodes it and compares its rows with the
reference's logits, which are not saved. Each row reads keys and values from the cache, as a
reply's tokens do, so it shows the effect of the cache type on all previous tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from engine.backends.base import Backend, Vocabulary
from engine.backends.base import Sequence as TokenSequence
from engine.configuration import Configuration, KVTypes
from engine.quality.metrics import Rows, compared_rows, own_rows, reference_rows
from engine.quality.records import QualityError, Role
from engine.quality.texts import Document


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Sizes of a context and its batches."""

    n_ctx: int
    n_batch: int
    """Tokens of a batch."""
    n_rows: int
    """Rows of logits of a batch."""

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
class OpenedContext:
    """An open context with one cache type, and its sequence."""

    kind: KVTypes
    role: Role
    backend: Backend
    sequence: TokenSequence
    compute_bytes: int
    """Bytes of the graph's buffers."""
    n_step: int | None = None
    """Maximum tokens of a decode; None is a whole batch."""


class ContextOpener(Protocol):
    """One loaded model that opens contexts with different cache types."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    def open(self, kind: KVTypes, shape: BatchShape, role: Role = "candidate") -> OpenedContext:
        """Open a context; the control computes with other kernels.

        Raises:
            ModelLoadError: the cache type or the size is refused; the message has the reason.
        """
        ...

    def close(self) -> None:
        """Free the model and all open contexts."""
        ...


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A batch that all contexts have decoded."""

    n_tokens: int
    rows: tuple[Rows, ...] = ()
    """One array per context; empty for unscored tokens."""


class CandidateError(QualityError):
    """A candidate's logits cannot be compared."""

    def __init__(self, kind: KVTypes, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def score(
    document: Document, contexts: Sequence[OpenedContext], *, n_chunk: int
) -> Iterator[ScoredChunk]:
    """Score a document and yield its rows chunk by chunk.

    Args:
        document: The document to decode, starting with an empty cache.
        contexts: The reference, then the contexts to compare with it.
        n_chunk: Tokens of a batch.

    Raises:
        CandidateError: a candidate's logits contain NaN or infinity.
        QualityError: those of the reference or the control do.
        EngineError: as `Sequence.verify`.
    """
    for each in contexts:
        each.sequence.crop(0)
    tokens, first = document.tokens, document.first
    for start in range(0, first, n_chunk):
        unscored = tokens[start : min(start + n_chunk, first)]
        for each in contexts:
            for step in _steps(unscored, each.n_step):
                each.sequence.prefill(step)
        yield ScoredChunk(len(unscored))
    for start in range(first, len(tokens) - 1, n_chunk):
        chunk = tokens[start : start + n_chunk]
        next_tokens = tokens[start + 1 : start + 1 + len(chunk)]
        yield ScoredChunk(len(chunk), tuple(_compare(contexts, chunk, next_tokens)))


def _compare(
    contexts: Sequence[OpenedContext], chunk: Sequence[int], next_tokens: Sequence[int]
) -> Iterator[Rows]:
    first, *others = contexts
    reference = reference_rows(first.sequence.verify(chunk).logits, next_tokens)
    yield own_rows(reference)
    for each in others:
        parts, start = [], 0
        try:
            for step in _steps(chunk, each.n_step):
                logits = each.sequence.verify(step).logits
                parts.append(compared_rows(reference, logits, start))
                start += len(step)
        except QualityError as error:
            if each.role == "candidate":
                raise CandidateError(each.kind, f"{each.kind}: {error}") from error
            raise
        yield np.concatenate(parts)


def _steps(tokens: Sequence[int], n_step: int | None) -> list[Sequence[int]]:
    size = n_step or len(tokens)
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]
