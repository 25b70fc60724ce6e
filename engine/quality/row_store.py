"""The rows of the texts that were scored to their end, kept until the measurement is complete.

A file is numpy's `.npz`: an array for each text of each context, and what was measured.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Self
from zipfile import BadZipFile
from zlib import error as ZlibError  # noqa: N812  a class by its name

import numpy as np
from numpy.lib.npyio import NpzFile

from engine.configuration import KVTypes
from engine.files import read_bytes, replace_file
from engine.quality.metrics import ROW, Rows
from engine.quality.records import QualityError, Role

MOST_BYTES = 1 << 30
"""Of a file: some 76 million rows."""
SUBJECT = "subject"
ROLES: tuple[Role, ...] = ("reference", "control", "candidate")
DAMAGED = (
    OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError,
    SyntaxError, struct.error, BadZipFile, ZlibError,
)  # fmt: skip
"""What numpy and zipfile raise for a file that is none of theirs."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """Whose rows of which document."""

    role: Role
    kind: KVTypes
    document: int
    """Its number among all documents."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key of its name in a file; raises `ValueError` of any other text."""
        name, k, v, document = text.split(" ")
        return cls(ROLES[ROLES.index(name)], KVTypes(k, v), int(document))

    def __str__(self) -> str:
        """Its name in a file: `candidate q8_0 q5_1 3`."""
        return f"{self.role} {self.kind.k} {self.kind.v} {self.document}"


def read_rows(path: Path, subject: str) -> dict[RowKey, Rows]:
    """The rows that a file holds of a subject; none where it is missing or of another subject.

    Raises:
        QualityError: the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        with NpzFile(BytesIO(read_bytes(path, limit=MOST_BYTES)), allow_pickle=False) as file:
            if str(file[SUBJECT]) != subject:
                return {}
            return {RowKey.parse(name): _rows(file[name]) for name in file if name != SUBJECT}
    except DAMAGED as error:
        raise QualityError(
            f"{path} cannot be read ({error}): delete it to measure those texts again"
        ) from error


def write_rows(path: Path, subject: str, rows: Mapping[RowKey, Rows]) -> None:
    """Replace a file by rows.

    Raises:
        QualityError: it cannot be written; the file stays as it was.
    """
    data = BytesIO()
    named = {str(key): each for key, each in rows.items()}
    np.savez(data, allow_pickle=False, **{SUBJECT: np.array(subject)}, **named)
    try:
        replace_file(path, [data.getvalue()], is_durable=False)
    except OSError as error:
        raise QualityError(
            f"{path} cannot be written ({error.strerror or error}): what was measured is shown, "
            "but cannot be taken up again; free space or name another file"
        ) from error


def _rows(found: Rows) -> Rows:
    if found.dtype != ROW or found.ndim != 1:
        raise ValueError(f"it has an array of {found.dtype}")
    return found
