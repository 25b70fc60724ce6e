"""What the headers of GGUF files said, remembered by path, size and time of change."""

import contextlib
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ModelFileError
from engine.files import read_record, write_record
from engine.model.gguf import GgufFile, read_gguf
from engine.model.identity import ModelKind, identity_of, kind_of
from engine.model.tensor_table import TokenReads, token_reads
from engine.model.vocabulary import VocabularyFacts, vocabulary_facts

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 4
"""Rises when `HeaderFacts` or its stamp changes; a file of another version is not used."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The part of a header that a list of models shows."""

    architecture: str | None = None
    file_type: str | None = None
    n_ctx_train: int | None = None
    kind: ModelKind = ModelKind.MODEL
    identity: str | None = None
    """The same for every copy of a model: see `engine.model.identity`."""
    problem: str | None = None
    vocabulary: VocabularyFacts | None = None
    """None where there is a problem."""
    reads: TokenReads | None = None
    """None where there is a problem."""


class HeaderCache:
    """Gives facts from memory where a file is as it was, and reads its header otherwise.

    A file is known by its path, and where it was moved to another, by its number on the disk.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        models = read_record(path, VERSION).get("models")
        self._known: dict[str, object] = models if isinstance(models, dict) else {}
        self._by_stamp = {_stamp_of(entry): entry for entry in self._known.values()}
        self._used: dict[str, object] = {}

    def facts(self, path: Path, nbytes: int) -> HeaderFacts:
        """What the header of a model says, or why it says nothing."""
        try:
            status = path.stat()
        except OSError as error:
            return HeaderFacts(problem=f"it cannot be read: {error.strerror}")
        stamp = [nbytes, status.st_mtime_ns, status.st_dev, status.st_ino]
        name = str(path)
        facts = _remembered(self._known.get(name), stamp)
        facts = facts or _remembered(self._by_stamp.get(tuple(stamp)), stamp)
        facts = facts or read_facts(path)
        if facts.identity is not None:  # what cannot be read now may be readable the next time
            self._used[name] = {"stamp": stamp, "facts": asdict(facts)}
        return facts

    def save(self) -> None:
        """Remember what was asked for since this cache was made."""
        if self._path is None or self._used == self._known:
            return
        # The next scan reads the headers again then; nothing that the user asked for is lost.
        with contextlib.suppress(OSError):
            write_record(self._path, VERSION, {"models": self._used})


def read_facts(model: Path) -> HeaderFacts:
    """Read the header of a model."""
    try:
        header = read_gguf(model)
        return _facts_of(header, identity_of(header))
    except ModelFileError as error:
        return HeaderFacts(problem=str(error))


def _facts_of(header: GgufFile, identity: str) -> HeaderFacts:
    architecture, kind = header.architecture, kind_of(header)
    problem = None
    if not architecture and kind is ModelKind.MODEL:
        problem = "its header names no architecture, so it is no language model"
    elif not header.tensors and kind is not ModelKind.VOCABULARY:
        problem = "it holds no weights"
    return HeaderFacts(
        architecture=architecture or None,
        file_type=header.file_type,
        n_ctx_train=header.integer(f"{architecture}.context_length"),
        kind=kind,
        identity=identity,
        problem=problem,
        vocabulary=None if problem else vocabulary_facts(header),
        reads=None if problem else token_reads(header),
    )


def _stamp_of(entry: object) -> tuple[int, ...]:
    stamp = entry.get("stamp") if isinstance(entry, dict) else None
    is_stamp = isinstance(stamp, list) and all(isinstance(number, int) for number in stamp)
    return tuple(stamp) if isinstance(stamp, list) and is_stamp else ()


@cache
def _reader() -> "TypeAdapter[HeaderFacts]":
    from pydantic import TypeAdapter

    return TypeAdapter(HeaderFacts)


def _remembered(entry: object, stamp: list[int]) -> HeaderFacts | None:
    """The facts of an entry; None if its model has changed or it is damaged."""
    if not isinstance(entry, dict) or entry.get("stamp") != stamp:
        return None
    facts = entry.get("facts")
    if not isinstance(facts, dict) or set(facts) != {field.name for field in fields(HeaderFacts)}:
        return None
    from pydantic import ValidationError  # with the first file that is known

    try:
        found = _reader().validate_python(facts)
    except ValidationError:
        return None
    return found if found.reads is None or 0 <= found.reads.expert_share <= 1 else None
