"""The journal of what a watched kvchat does, which others read along."""

import json
import os
import threading
import time
from pathlib import Path
from typing import TypeAlias

Line: TypeAlias = dict[str, object]
"""`kind`, `at` in nanoseconds of a clock that all processes share, and what the kind has."""


class Journal:
    """Writes lines to a file that others read along; from any thread."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def tell(self, kind: str, **values: object) -> None:
        """Add a line; it is in the system's hands when this returns."""
        line = {"kind": kind, "at": time.monotonic_ns(), **values}
        spelled = json.dumps(line).encode() + b"\n"
        with self._lock:
            while spelled:
                spelled = spelled[os.write(self._handle, spelled) :]


class Reader:
    """Gives the whole lines of a journal that were added since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[Line]:
        """Give them; the beginning of a line that a kill cut is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
