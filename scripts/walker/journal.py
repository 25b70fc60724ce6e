"""The journal: what a watched kvchat did, as lines of JSON that the walker reads meanwhile."""

import json
import os
import threading
import time
from pathlib import Path
from typing import TypeAlias

JOURNAL = "KVCHAT_WALK_JOURNAL"
"""Environment variable with the path of the journal."""
Line: TypeAlias = dict[str, object]
"""`kind`, `at` in nanoseconds of the monotonic clock, and the values of the kind."""


class Journal:
    """Appends lines, from any thread and process."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def write(self, kind: str, **values: object) -> None:
        """Append a line; it survives a kill of the process once this returns."""
        line = {"kind": kind, "at": time.monotonic_ns(), **values}
        data = json.dumps(line).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._handle, data) :]


class Reader:
    """Reads a journal while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[Line]:
        """Complete lines since the last call; a line that a kill cut short is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        complete = added[: added.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [json.loads(line) for line in complete.splitlines()]
