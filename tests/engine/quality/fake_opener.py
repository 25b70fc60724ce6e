"""Contexts of the fake language model: a type's name has the error of its logits."""

from collections.abc import Mapping

import numpy as np

from engine.backends.base import Forward
from engine.configuration import KVTypes
from engine.errors import ModelLoadError
from engine.quality.metrics import Rows
from engine.quality.records import Report, Role, Subject, TextFacts
from engine.quality.scoring import BatchShape, OpenedContext, score
from engine.quality.texts import Document
from engine.testing import FakeBackend, FakeSequence, FakeVocabulary

NOISES: Mapping[str, float] = {"f16": 0.0, "q8_0": 0.01, "q4_0": 0.3}
F16 = KVTypes("f16", "f16")
Q8 = KVTypes("q8_0", "q8_0")
Q4 = KVTypes("q4_0", "q4_0")
BROKEN = KVTypes("iq4_nl", "iq4_nl")
"""Its logits are no numbers."""
TOO_LARGE = KVTypes("f32", "f32")
"""It cannot be opened."""


class BrokenBackend(FakeBackend):
    def open(self) -> FakeSequence:
        return _BrokenSequence(self)


class _BrokenSequence(FakeSequence):
    def verify(self, tokens, *, unread=()):  # type: ignore[no-untyped-def]
        return Forward(np.full_like(super().verify(tokens, unread=unread).logits, np.nan))


class FakeOpener:
    def __init__(self, n_most: int | None = None) -> None:
        self.vocabulary = FakeVocabulary()
        self.opened: list[tuple[KVTypes, BatchShape, FakeBackend]] = []
        self.n_most = n_most
        """Contexts that memory holds at once."""

    @property
    def n_open(self) -> int:
        return sum(not backend.is_closed for _, _, backend in self.opened)

    def open(self, kind: KVTypes, shape: BatchShape, role: Role = "candidate") -> OpenedContext:
        if kind == TOO_LARGE or (self.n_most is not None and self.n_open >= self.n_most):
            raise ModelLoadError(f"llama.cpp refused a context of {kind}")
        sort = BrokenBackend if kind == BROKEN else FakeBackend
        backend = sort(
            self.vocabulary,
            n_ctx=shape.n_ctx,
            n_batch=shape.n_batch,
            n_rows=shape.n_rows,
            noise=NOISES.get(kind.k, 0.05),
        )
        self.opened.append((kind, shape, backend))
        n_step = 3 if role == "control" else None
        return OpenedContext(kind, role, backend, backend.open(), 1000, n_step)

    def close(self) -> None:
        pass


def contexts(*kinds: KVTypes, n_chunk: int = 8, n_ctx: int = 512) -> list[OpenedContext]:
    """The reference, the control in steps of 3, and kinds."""
    opener, shape = FakeOpener(), BatchShape(n_ctx, n_chunk, n_chunk)
    return [
        opener.open(F16, shape, "reference"),
        opener.open(F16, shape, "control"),
        *(opener.open(kind, shape) for kind in kinds),
    ]


def scored(
    document: Document,
    listed: list[OpenedContext],
    *,
    n_chunk: int = 8,
) -> tuple[tuple[Rows, ...], list[int]]:
    """The rows of a document, and what was yielded on the way."""
    chunks = list(score(document, listed, n_chunk=n_chunk))
    rows = zip(*(chunk.rows for chunk in chunks if chunk.rows), strict=True)
    return tuple(np.concatenate(each) for each in rows), [chunk.n_tokens for chunk in chunks]


def documents(n: int = 4, n_tokens: int = 60) -> tuple[Document, ...]:
    """Texts of all kinds."""
    draw = np.random.default_rng(3)
    kinds = ("chat", "code", "document", "tools")
    return tuple(
        Document(f"text {index}", kinds[index % 4], tuple(draw.integers(0, 256, n_tokens).tolist()))
        for index in range(n)
    )


def empty_report(texts: tuple[Document, ...], n_chunk: int = 8) -> Report:
    subject = Subject(
        model="fake",
        model_identity="0" * 32,
        texts_digest="1" * 32,
        build="1",
        device="none",
        n_threads=1,
        n_ctx=600,
        n_chunk=n_chunk,
        reference=F16,
        settings={},
    )
    facts = tuple(
        TextFacts(each.name, each.kind, each.n_rows) for each in texts if not each.answers
    )
    return Report(subject, facts, "2026-01-01T00:00:00+00:00")
