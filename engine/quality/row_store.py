"""The rows of a measurement that is not complete, kept so that it can go on where it was stopped.

A file is `KVCHATQR`, the bytes of its head as a 32-bit number, the head as JSON, the BLAKE2b digest
of all that follows, and the rows of each block behind one another.
"""

import json
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from engine.configuration import KVTypes
from engine.files import read_bytes, replace_file
from engine.parsing import parse_json
from engine.quality.metrics import ROW, Rows
from engine.quality.records import QualityError, Role

MAGIC = b"KVCHATQR"
PRELUDE = struct.Struct("<8sI")
DIGEST_BYTES = 32
MOST_BYTES = 1 << 30
"""Of a file: some 76 million rows."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """Whose rows of which document."""

    role: Role
    kind: KVTypes
    document: int
    """Its number among all documents."""


class RowStore:
    """Rows by whose they are; `path` None keeps them in memory only.

    Args:
        path: The file.
        subject: What tells one measurement from others, such as a digest.
    """

    def __init__(self, path: Path | None, subject: str) -> None:
        self._path = path
        self._subject = subject
        self._rows: dict[RowKey, Rows] = {}

    def read(self) -> None:
        """Take up what a file of the same subject holds; nothing where there is none.

        Raises:
            QualityError: the file is damaged.
        """
        if self._path is None or not self._path.exists():
            return
        try:
            self._rows = _blocks(read_bytes(self._path, limit=MOST_BYTES), self._subject)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise QualityError(
                f"{self._path} cannot be read ({error}): delete it to measure those texts again"
            ) from error

    def get(self, key: RowKey) -> Rows | None:
        """The rows under a key; None where there are none."""
        return self._rows.get(key)

    def n_rows(self, key: RowKey) -> int:
        """How many rows there are under a key, from the document's first scored one on."""
        return len(self._rows.get(key, ()))

    def put(self, key: RowKey, start: int, rows: Rows) -> None:
        """Keep rows in memory, until `write`; where there are as many already, those stay.

        Args:
            key: Whose rows they are.
            start: Rows of the document before them, of which none may be missing.
            rows: The rows of a chunk.
        """
        before = self.get(key)
        if before is None and not start:
            self._rows[key] = rows
        elif before is not None and start <= len(before) < start + len(rows):
            self._rows[key] = np.concatenate([before[:start], rows])

    def write(self) -> None:
        """Replace the file by what is held.

        Raises:
            QualityError: it cannot be written; the file stays as it was.
        """
        if self._path is None:
            return
        listed = [
            [key.role, key.kind.k, key.kind.v, key.document, len(rows)]
            for key, rows in self._rows.items()
        ]
        head = json.dumps({"subject": self._subject, "blocks": listed}).encode()
        data = b"".join(rows.tobytes() for rows in self._rows.values())
        digest = blake2b(head + data, digest_size=DIGEST_BYTES).digest()
        try:
            prelude = PRELUDE.pack(MAGIC, len(head))
            replace_file(self._path, [prelude, digest, head, data], is_durable=False)
        except OSError as error:
            raise QualityError(
                f"{self._path} cannot be written ({error.strerror or error}): what was measured is "
                "shown, but cannot be taken up again; free space or name another file"
            ) from error


def _blocks(data: bytes, subject: str) -> dict[RowKey, Rows]:
    if len(data) < PRELUDE.size + DIGEST_BYTES:
        raise ValueError("it is cut off")
    magic, n_head = PRELUDE.unpack_from(data)
    digest = data[PRELUDE.size : PRELUDE.size + DIGEST_BYTES]
    body = data[PRELUDE.size + DIGEST_BYTES :]
    if magic != MAGIC or blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
        raise ValueError("it is damaged, or no file of rows")
    head = parse_json(body[:n_head])
    if not isinstance(head, dict) or head["subject"] != subject:
        return {}
    found: dict[RowKey, Rows] = {}
    at = n_head
    for role, type_k, type_v, document, n_rows in head["blocks"]:
        if n_rows < 0:
            raise ValueError(f"a block has {n_rows} rows")
        rows = np.frombuffer(body, dtype=ROW, count=n_rows, offset=at)
        found[RowKey(role, KVTypes(type_k, type_v), document)] = rows
        at += rows.nbytes
    return found
