"""A small file of JSON that keeps the newest entries of something, by name; only a help."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from engine.files import RECORDS_BYTES, read_bytes, replace_file
from engine.parsing import parse_json


@dataclass(frozen=True, slots=True)
class NewestEntries:
    """Entries that are read and written whole.

    A file that is missing, damaged or of another version is as good as an empty one, and one that
    cannot be written stays as it is: what is kept here can be found out again.
    """

    path: Path | None
    """None keeps nothing."""
    name: str
    """Key of the entries in the file."""
    version: int
    n_most: int
    """Entries that are kept at most; the oldest go."""

    def read(self) -> dict[str, object]:
        """Give the entries, oldest first."""
        if self.path is None:
            return {}
        try:
            known = parse_json(read_bytes(self.path, limit=RECORDS_BYTES))
        except (OSError, ValueError):
            return {}
        if not isinstance(known, dict) or known.get("version") != self.version:
            return {}
        entries = known.get(self.name)
        return entries if isinstance(entries, dict) else {}

    def add(self, key: str, entry: object) -> None:
        """Keep an entry as the newest, in the place of one with its key."""
        if self.path is None:
            return
        entries = self.read()
        entries.pop(key, None)
        entries[key] = entry
        newest = dict(list(entries.items())[-self.n_most :])
        text = json.dumps({"version": self.version, self.name: newest})
        with contextlib.suppress(OSError):
            replace_file(self.path, [text.encode()], is_durable=False)
