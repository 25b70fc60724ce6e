"""What was learnt about the installed build of llama.cpp, kept in a small file."""

import contextlib
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from engine.files import RECORDS_BYTES, read_bytes, replace_file
from engine.parsing import parse_json

KEY = "crashes_with_extra_buffers_alone"
"""Key of the build in the file."""


class BuildMemory:
    """Remembers that extra buffer types crash this build; another build starts afresh.

    `path` None remembers nothing beyond the process.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._build = installed_build()
        self.extra_buffers_crash = self._read()

    def remember_crash(self) -> None:
        """Note the crash, on disk where there is a path that can be written."""
        self.extra_buffers_crash = True
        if self._path is None:
            return
        # Where nothing can be written, the next start finds the crash out again.
        text = json.dumps({KEY: self._build}) + "\n"
        with contextlib.suppress(OSError):
            replace_file(self._path, [text.encode()], is_durable=False)

    def _read(self) -> bool:
        if self._path is None or not self._path.is_file():
            return False
        try:
            known = parse_json(read_bytes(self._path, limit=RECORDS_BYTES))
        except (OSError, ValueError):
            return False
        return isinstance(known, dict) and known.get(KEY) == self._build


def installed_build() -> str:
    """Give version and time of installation of llama-cpp-python, without importing it."""
    try:
        found = distribution("llama-cpp-python")
    except PackageNotFoundError:
        return "not installed"
    library = Path(str(found.locate_file("llama_cpp/lib/libllama.so")))
    stamp = int(library.stat().st_mtime) if library.exists() else 0
    return f"{found.version}@{stamp}"
