"""Reports of faults that nobody foresaw: where each happened, and nothing of what was written."""

import hashlib
import linecache
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from traceback import walk_tb

from app import __version__
from engine.files import replace_file

N_REPORTS = 20
"""Reports that are kept, the newest."""
N_FRAMES = 40
"""Calls of each exception that a report lists, the innermost."""
N_NAMING = 3
"""Calls, the innermost, that say which fault it is: what led to them may differ."""
N_CHAINED = 5
"""Exceptions behind one another that a report lists."""


@dataclass(frozen=True, slots=True)
class FaultReport:
    """A fault, and the file that says where it happened."""

    reference: str
    """The same for the same place, in every report and on every machine."""
    path: Path | None
    """None where the file could not be written."""

    @property
    def whereabouts(self) -> str:
        """How a user finds it."""
        kept = "no report could be written" if self.path is None else f"report: {self.path}"
        return f"fault {self.reference}, {kept}"


def reference_of(error: BaseException) -> str:
    """A short name of the place where an exception was raised."""
    places = [place for place, _ in _places(error)][-N_NAMING:]
    named = "\n".join((type(error).__name__, *places))
    return hashlib.sha256(named.encode(errors="replace")).hexdigest()[:6]


def write_report(
    folder: Path, error: BaseException, *, doing: str, reference: str | None = None
) -> FaultReport:
    """Say in a file what failed where; an earlier report of the same place is replaced.

    Messages of exceptions are left out: they may hold what was written in a chat, names of files
    or keys.

    Args:
        folder: Where the reports are.
        error: What was raised.
        doing: What kvchat did then.
        reference: The name that it was given already; None names its place.
    """
    reference = reference or reference_of(error)
    path = folder / f"{reference}.txt"
    text = "\n".join(_lines(error, reference, doing)) + "\n"
    try:
        replace_file(path, [text.encode(errors="replace")], is_durable=False)
        _drop_oldest(folder)
    except OSError:
        return FaultReport(reference, None)
    return FaultReport(reference, path)


def _lines(error: BaseException, reference: str, doing: str) -> Iterator[str]:
    yield f"kvchat {__version__}, Python {platform.python_version()}, {sys.platform}"
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield f"reference: {reference}"
    yield f"doing: {doing}"
    for each in _chain(error):
        yield ""
        number = f" [errno {each.errno}]" if isinstance(each, OSError) else ""
        yield f"{type(each).__name__}{number}"
        for place, line in _places(each):
            yield f"  {place}"
            yield f"    {line}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it was raised from."""
    current: BaseException | None = error
    for _ in range(N_CHAINED):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def _places(error: BaseException) -> Iterator[tuple[str, str]]:
    """The calls that lead to an exception, and the line of each."""
    for frame, line in [*walk_tb(error.__traceback__)][-N_FRAMES:]:
        code = frame.f_code
        text = linecache.getline(code.co_filename, line).strip()
        yield f"{_short(code.co_filename)}:{line} in {code.co_name}", text[:200]


def _short(file: str) -> str:
    """The path of a source file without the folders of whoever installed it."""
    parts = Path(file).parts
    roots = (n for n, part in enumerate(parts) if part in ("app", "engine", "site-packages"))
    return str(Path(*parts[next(roots, len(parts) - 1) :]))


def _drop_oldest(folder: Path) -> None:
    reports = sorted(folder.glob("*.txt"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in reports[N_REPORTS:]:
        path.unlink(missing_ok=True)
