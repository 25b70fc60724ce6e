"""What the headers of GGUF files said, remembered by path, size and time of change."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFileError
from engine.files import NewestEntries, is_file
from engine.model.gguf import GgufFile, read_gguf
from engine.model.identity import ModelKind, identity_of, kind_of
from engine.model.tensor_table import TokenReads, token_reads
from engine.model.vocabulary import VocabularyFacts, vocabulary_facts

VERSION = 6
"""Rises when `StampedFacts` changes; a file of another version is not used."""
MOST_MODELS = 10_000
"""About 5 MB, which `NewestEntries` still reads."""


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

    @property
    def is_sane(self) -> bool:
        """Whether a header can have said so."""
        is_share = self.reads is None or 0 <= self.reads.expert_share <= 1
        return self.identity is not None and is_share


@dataclass(frozen=True, slots=True)
class StampedFacts:
    """Facts, and what of their file changes with it."""

    stamp: tuple[int, ...]
    facts: HeaderFacts


class HeaderCache:
    """Gives facts from memory where a file is as it was, and reads its header otherwise.

    A file is known by its path, and where it was moved to another, by its number on the disk.
    """

    def __init__(self, path: Path | None) -> None:
        self._entries = NewestEntries(path, "models", VERSION, MOST_MODELS, StampedFacts)
        self._known = self._entries.read()
        self._by_stamp = {entry.stamp: entry for entry in self._known.values()}
        self._used: dict[str, StampedFacts] = {}

    def facts(self, path: Path, nbytes: int) -> HeaderFacts:
        """What the header of a model says, or why it says nothing."""
        try:
            status = path.stat()
        except OSError as error:
            return HeaderFacts(problem=f"it cannot be read: {error.strerror}")
        stamp = (nbytes, status.st_mtime_ns, status.st_dev, status.st_ino)
        known = self._known.get(str(path))
        if known is None or known.stamp != stamp:
            known = self._by_stamp.get(stamp)
        facts = known.facts if known is not None and known.facts.is_sane else read_facts(path)
        if facts.identity is not None:  # what cannot be read now may be readable the next time
            self._used[str(path)] = StampedFacts(stamp, facts)
        return facts

    def save(self) -> None:
        """Save what was asked for since this cache was made, with the models of other folders."""
        if any(self._known.get(path) != entry for path, entry in self._used.items()):
            others = self._known.keys() - self._used.keys()
            kept = {path: self._known[path] for path in others if is_file(Path(path))}
            # The next scan reads the headers again then; nothing that the user asked for is lost.
            with contextlib.suppress(OSError):
                self._entries.write({**kept, **self._used})


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
        problem = "its header names no architecture, so it is not a language model"
    elif not header.tensors and kind is not ModelKind.VOCABULARY:
        problem = "it has no weights"
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
